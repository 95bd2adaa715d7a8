#!/usr/bin/env python3
"""Writes cases.jsonl: small templates of our own, and what Python's Jinja2 makes of each.

Run with Jinja2 3.1 installed: python3 tests/data/jinja/make_cases.py > tests/data/jinja/cases.jsonl
The environment is the one that Hugging Face's transformers builds for chat templates.
"""
import datetime
import json

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.Scope(body, lineno=line)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
env.globals["strftime_now"] = lambda f: datetime.datetime(2026, 1, 15, 12, 0, 0).strftime(f)

V = {
    "s": "Hello, World", "u": "Grüße 北京 😀", "sp": "  a b  ", "e": "", "n": 7, "neg": -7, "f": 2.5, "t": True, "none": None,
    "l": [3, 1, 2], "words": ["b", "A", "c", "a"], "d": {"b": 1, "a": [1, {"x": None}], "C": "z"},
    "people": [{"name": "Zoe", "age": 30, "tags": ["x"]}, {"name": "adam", "age": 25}, {"name": "Bo", "age": 30}],
    "nested": {"items": "mine", "k": {"deep": [10, 20, 30]}}, "html": "<b>&'\"</b>", "lines": "one\ntwo\n\nthree",
    "tree": [{"v": 1, "kids": [{"v": 2, "kids": [{"v": 3, "kids": []}]}]}, {"v": 4, "kids": []}],
}

CASES = r'''
plain text
a {{ s }} b
{{ s.x is defined }} {{ nope is defined }} {{ none is none }} {{ d.b is defined }}
[{{ nope }}] [{{ d.nope }}]
{{ nope.x }}
{{ d.nope.x }}
{{ nope() }}
{{ 1 + 2 * 3 ** 2 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** -1 }} {{ 2 ** 3 ** 2 }}
{{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1e3 }} {{ 1.5e-7 }} {{ 1e16 }} {{ 123456789.123 }} {{ 0.1 + 0.2 }} {{ 1_000 }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ 'a' + 1 }}
{{ 1 + 'a' }}
{{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ [1] * 2 }} {{ 'a' * -1 }}|
{{ [1] + [2] }} {{ (1,) + (2, 3) }} {{ (1,) }} {{ () }}
{{ [1] + (2,) }}
{{ 'a' ~ 1 ~ none ~ true ~ 1.0 }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 'a' == 1 }}
{{ 'a' < 1 }}
{{ none < 1 }}
{{ 2 in l }} {{ 'ell' in s }} {{ 'b' in d }} {{ 9 not in l }} {{ 'x' in nope }}
{{ 1 in 5 }}
{{ 1 in s }}
{{ not t }} {{ t and e }} {{ e or 'x' }} {{ t and 'y' or 'z' }} {{ not 1 == 2 }}
{{ 'yes' if t else 'no' }} {{ 'yes' if e }}| {{ 'a' if e else 'b' if e else 'c' }}
{{ -n }} {{ +n }} {{ -n|abs }} {{ - 3 + 5 }} {{ -f }}
{{ -s }}
{{ s[0] }}{{ s[-1] }} {{ s[1:4] }} {{ s[::-1] }} {{ s[:-2] }} {{ s[-5:] }} {{ s[::3] }} {{ s[100:] }}| {{ s[5:2] }}|
{{ u[6:8] }} {{ u[::-1] }} {{ u|length }} {{ u[-1] }} {{ u[6] }} {{ u|upper }}
{{ l[0] }} {{ l[-1] }} {{ l[1:] }} {{ l[::-1] }} {{ l[10] is defined }} {{ l[-3:-1] }} {{ l[::2] }} {{ l[-10:10] }} {{ l[2:0:-1] }}
{{ l[::0] }}
{{ l['x'] is defined }} {{ s['upper']() }} {{ d['items'] is defined }} {{ nested['items'] }} {{ nested.items() | list | length }}
{{ nested.k.deep[1] }} {{ nested['k']['deep'][-1] }} {{ nested.k.deep.0 }} {{ people[0].name }} {{ people.1.age }}
{{ [1, 'a', "it's", 'say "hi"', none, true, 1.5, {'k': [1]}, (1, 2)] }}
{{ ['\n\t\\', 'é', '​', '\x07', "'\""] }}
{{ d }} {{ d.items() }} {{ range(3) }} {{ range(1, 10, 3) }} {{ range(5)|list }} {{ range(10, 0, -4)|list }}
{{ range(3)[1] }} {{ range(3)|length }} {{ range(1000000) }}
{{ range(10)[2:5]|list }} {{ 3 in range(5) }} {{ range(0)|list }} {{ range(1,2,0) }}
{{ true }} {{ True }} {{ false }} {{ None }} {{ none }}
{{ {'a': 1, 'b': {'c': 2}}.b.c }} {{ {} }} {{ {'a': 1}['a'] }} {{ {1: 'x', 1.0: 'y', true: 'z'} }} {{ {(1,2): 3} }}
{{ {[1]: 2} }}
{% if n > 5 %}big{% elif n > 3 %}mid{% else %}small{% endif %} {% if e %}x{% endif %}|{% if not e %}y{% endif %}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.length }};{% endfor %}
{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}{{ loop is defined }}
{% for x in [] %}a{% else %}none{% endfor %} {% for x in nope %}a{% else %}none{% endfor %}
{% for x in none %}{% endfor %}
{% for x in 5 %}{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for c in 'añb' %}<{{ c }}>{% endfor %}
{% for k, v in [[1, 2, 3]] %}{% endfor %}
{% for a, (b, c) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for x in range(10) if x % 3 == 0 %}{{ x }}/{{ loop.length }}/{{ loop.last }} {% endfor %}
{% set ns = namespace(k=0) %}{% for x in range(10) if x > ns.k %}{% set ns.k = x + 2 %}{{ x }} {% endfor %}
{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in [1,2] %}{% for y in [1,2,3] %}{% if y == 2 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}
{% break %}
{% for x in [1] %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}
{% for x in [1, 1, 2, 2, 1] %}{% if loop.changed(x) %}{{ x }}{% endif %}{{ loop.cycle('a', 'b') }}{% endfor %}
{% for n in tree recursive %}{{ n.v }}@{{ loop.depth }}{% if n.kids %}({{ loop(n.kids) }}){% endif %}{% endfor %}
{% for n in tree %}{{ loop(n.kids) }}{% endfor %}
{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}
{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}
{% set a, b = 1, 2 %}{{ a }}{{ b }} {% set c = 1, 2 %}{{ c }} {% set (p, q) = [3, 4] %}{{ p + q }}
{% set a, b = [1] %}
{% set ns = namespace(a=1, b='x') %}{% for i in [1, 2] %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }}
{% set ns = namespace({'a': 1}) %}{{ ns.a }} {% set ns = namespace(d, z=1) %}{{ ns.z }}{{ ns.b }}
{% set d.x = 1 %}
{% set nope.x = 1 %}
{% set x %}a{{ n }}b{% endset %}[{{ x }}] {% set y | upper | replace('A', 'Q') %}banana{% endset %}[{{ y }}] {% set z %}{% set inner = 5 %}{% endset %}{{ inner is defined }}
{% macro m(a, b=2, c=a) %}{{ a }}-{{ b }}-{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=5, a=4) }} {{ m() }}|
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}
{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }} {{ m.name }}
{% macro m() %}{{ caller() }}!{% endmacro %}{% call m() %}body{{ n }}{% endcall %}
{% macro m() %}{% for i in l %}{{ caller(i, loop.index) }}{% endfor %}{% endmacro %}{% call(x, y=0) m() %}<{{ x }}{{ y }}>{% endcall %}
{% macro m() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}{% set x = 2 %}{{ m() }}
{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}
{% macro m() %}{% set x = 5 %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}{{ x }} {{ m()|length }} {{ m() is string }}
{% filter upper %}abc {{ s }}{% endfilter %} {% filter trim|replace('x', 'y') %}  xx  {% endfilter %}|
{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a is defined }} {% with %}{% set q = 1 %}{% endwith %}{{ q is defined }}
{% block title %}in block{% endblock %} {% block other %}{{ n }}{% endblock other %} {% print n, 1 %}
{% generation %}gen{% set g = 1 %}{% endgeneration %}
{% raw %}{{ not }} {% this %}{% endraw %} {%- raw -%}  x  {%- endraw %} y
a   {%- if true -%}   b   {%- endif -%}   c {{- n -}} d
{{ n }}
{% do l.append(1) %}
{% include 'x' %}
{% endif %}
{% if x %}
{{ 1 + }}
{{ (1, 2 }}
{{ 'abc }}
{{ a b }}
{{ $ }}
{% for in x %}{% endfor %}
{{ x | nosuchfilter }}
{{ x is nosuchtest }}
{% if false %}{{ x | nosuchfilter }}{% endif %}ok
{{ l.append(4) }}
{{ l.append is defined }} {{ d.update is defined }} {{ d.pop is callable }}
{{ d.pop('b') }}
{{ s.__class__ }}
{{ s.upper() }} {{ s.lower() }} {{ s.title() }} {{ s.capitalize() }} {{ s.swapcase() }} {{ "it's o'neil".title() }} {{ "it's o'neil"|title }} {{ 'a-b (c)'|title }}
[{{ sp.strip() }}] [{{ sp.lstrip() }}] [{{ sp.rstrip() }}] {{ 'xxaxx'.strip('x') }} {{ 'abcba'.strip('ab') }} {{ 'xyz'.lstrip('yx') }} {{ ' a'.strip(none) }}
{{ s.split() }} {{ s.split(', ') }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a  b c '.split() }} {{ ' a  b c '.split(none, 1) }} {{ ' a b '.rsplit(none, 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ ',a,'.split(',') }}
{{ s.split('') }}
{{ 'a\nb\r\nc\n\nd'.splitlines() }} {{ 'a\nb'.splitlines(true) }} {{ ''.splitlines() }} {{ 'k=v=w'.partition('=') }} {{ 'k=v=w'.rpartition('=') }} {{ 'k'.partition('=') }} {{ 'k'.rpartition('=') }}
{{ s.replace('l', 'L') }} {{ s.replace('l', 'L', 1) }} {{ 'aaa'.replace('aa', 'b') }} {{ 'ab'.replace('', '-') }} {{ 'ab'.replace('', '-', 1) }} {{ s.replace('l', '') }} {{ s|replace('o', '0') }} {{ 1234|replace(2, 'x') }}
{{ s.startswith('He') }} {{ s.endswith('ld') }} {{ s.startswith(('x', 'H')) }} {{ s.startswith('') }} {{ 'abc'.startswith('b', 1) }} {{ 'ab'.removeprefix('a') }} {{ 'ab'.removesuffix('b') }} {{ 'ab'.removesuffix('x') }}
{{ s.startswith(1) }}
{{ s.find('o') }} {{ s.rfind('o') }} {{ s.find('zz') }} {{ s.index('W') }} {{ u.find('北') }} {{ s.count('l') }} {{ s.count('') }} {{ s.find('o', 5) }} {{ 'aXbXc'.find('X', 2) }} {{ 'aaaa'.count('aa') }}
{{ s.index('zz') }}
{{ ', '.join(['a', 'b']) }} {{ ''.join([]) }}| {{ '-'.join('abc') }}
{{ ', '.join([1]) }}
{{ '%s is %d years and %.2f, %5d|%-5d|%05d %x %%' % ('Bo', 30, 1.5, 42, 42, 42, 255) }} {{ '%s' % 'a' }} {{ '%r' % 'a' }} {{ '%(a)s' % {'a': 1} }} {{ '%+d % d' % (3, 4) }}
{{ '%s %s' % 'a' }}
{{ '%d' % 'a' }}
{{ '{} {}'.format(1, 'b') }} {{ '{1}{0}'.format('a', 'b') }} {{ '{x}'.format(x=3) }} {{ '{0:>5}|{0:<5}|{0:^5}|{0:*^5}'.format('ab') }} {{ '{:05d} {:,} {:.2f} {:x} {:+d} {:%}'.format(42, 1234567, 2.345, 255, 5, 0.25) }} {{ '{{}}'.format() }} {{ '{0[a]} {0[a]!r}'.format({'a': 'q'}) }} {{ '{:.3}'.format('abcdef') }} {{ '{:e}'.format(12345.678) }} {{ '{}'.format(none) }}
{{ '{}'.format() }}
{{ '{'.format(1) }}
{{ 'x'.center(5) }}| {{ 'x'.ljust(3, '.') }} {{ 'x'.rjust(3) }} {{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} {{ 'ab'.center(5) }}| {{ 'a'.center(4) }}| {{ 'ab'|center(6) }}|
{{ 'abc'.isalpha() }} {{ 'a1'.isalnum() }} {{ '12'.isdigit() }} {{ ' '.isspace() }} {{ 'ab'.islower() }} {{ 'AB'.isupper() }} {{ ''.isalpha() }} {{ 'A1'.isupper() }} {{ '1'.islower() }}
{{ d.keys()|list }} {{ d.values()|list }} {{ d.items()|list }} {{ d.get('b') }} {{ d.get('q') }} {{ d.get('q', 5) }} {{ d.copy() == d }}
{{ l.index(2) }} {{ l.count(1) }} {{ (1, 2, 1).count(1) }}
{{ l.index(99) }}
{{ l|sort }} {{ l|sort(reverse=true) }} {{ words|sort }} {{ words|sort(case_sensitive=true) }} {{ people|sort(attribute='age')|map(attribute='name')|list }} {{ people|sort(attribute='age,name')|map(attribute='name')|join(',') }}
{{ [1, 'a']|sort }}
{{ d|dictsort }} {{ d|dictsort(true) }} {{ {'x': 2, 'y': 1}|dictsort(false, 'value') }} {{ d|dictsort(reverse=true) }}
{{ l|first }} {{ l|last }} {{ []|first is defined }} {{ s|first }} {{ s|last }} {{ d|first }} {{ l|min }} {{ l|max }} {{ []|max is defined }} {{ words|min }} {{ people|max(attribute='age') }}
{{ l|reverse|list }} {{ s|reverse }} {{ l|sum }} {{ people|sum(attribute='age') }} {{ l|sum(start=10) }} {{ l|length }} {{ d|count }}
{{ people|selectattr('age', 'equalto', 30)|map(attribute='name')|list }} {{ people|rejectattr('tags', 'defined')|list|length }} {{ people|selectattr('tags')|list|length }} {{ people|selectattr('age', '>', 26)|list|length }}
{{ l|select('odd')|list }} {{ l|reject('odd')|list }} {{ [0, 1, '', 'a']|select|list }} {{ l|select('gt', 1)|list }} {{ l|select('in', [1, 2])|list }} {{ words|map('upper')|list }} {{ people|map(attribute='tags', default='-')|list }} {{ people|map(attribute='tags.0')|list }}
{{ l|map('nosuch')|list }}
{{ (l|map('string'))[0] is defined }} {{ l|select('odd') is iterable }} {{ l|map('string') is sequence }}
{{ l|map('string')|length }}
{{ l|map('string')|tojson }}
{% set g = l|select('odd') %}{{ g|list }}{{ g|list }}{% set g = d|items %}{{ g|list }}
{{ people|map('tojson')|list }}
{{ words|unique|list }} {{ words|unique(true)|list }} {{ [1, 1, 2]|unique|list }} {{ people|unique(attribute='age')|map(attribute='name')|list }}
{% for k, v in people|groupby('age') %}{{ k }}:{{ v|map(attribute='name')|join('+') }} {% endfor %}{% for g in people|groupby('age') %}{{ g[0] }}{% endfor %}
{{ [1, 2, 3, 4, 5]|batch(2)|list }} {{ [1, 2, 3]|batch(2, 'x')|list }} {{ [1, 2, 3, 4, 5]|slice(2)|list }} {{ [1, 2, 3]|slice(2, 'x')|list }}
{{ l|join }} {{ l|join('-') }} {{ people|join(', ', attribute='name') }} {{ [none, 1, 'a']|join(',') }} {{ s|join('.') }}
{{ '5'|int }} {{ 'x'|int }} {{ 'x'|int(9) }} {{ '2.9'|int }} {{ 3.9|int }} {{ 'ff'|int(base=16) }} {{ '0x1f'|int(base=16) }} {{ none|int }} {{ ' 12 '|int }} {{ '1_0'|int }} {{ true|int }} {{ '2.5'|float }} {{ 'x'|float }} {{ 'x'|float(1.5) }} {{ 3|float }}
{{ 2.5|round }} {{ 2.567|round(2) }} {{ 2.1|round(method='ceil') }} {{ 2.9|round(0, 'floor') }} {{ 7|round }} {{ -3|abs }} {{ -3.5|abs }} {{ 3.5|round }} {{ 0.5|round }}
{{ nope|default('x') }} {{ none|default('x') }} {{ none|default('x', true) }} {{ ''|d('y', boolean=true) }} {{ nope|default }}|
{{ html|e }} {{ html|escape|escape }} {{ html|safe }} {{ html|e|safe }} {{ html|forceescape }} {{ (html|safe) + '<' }} {{ ('<' + (html|safe)) }} {{ ('<b>'|safe) ~ '<' }} {{ ('%s'|safe) % '<' }} {{ ('a'|safe).replace('a', '<') }} {{ [html|safe] }} {{ html|safe is escaped }}
{{ lines|indent }}|{{ lines|indent(2, true) }}|{{ lines|indent(2, first=true, blank=true) }}|{{ lines|indent('> ') }}|{{ ''|indent }}|{{ 'a\n'|indent }}|
{{ 1|indent }}
{{ 'foo bar baz qux'|truncate(9) }} {{ 'foo bar baz qux'|truncate(9, true) }} {{ 'foo bar baz qux'|truncate(11) }} {{ 'foo bar baz qux'|truncate(11, false, '...', 0) }} {{ u|truncate(5, true, '~', 0) }}
{{ 'a b_c d-e'|wordcount }} {{ 'a b/ü?&'|urlencode }} {{ '%s-%s'|format(1, 2) }} {{ '%(a)s'|format(a=3) }} {{ s|attr('upper') is defined }} {{ d|attr('b') is defined }} {{ '  x '|trim }} {{ 'xxax'|trim('x') }} {{ 5|string + 'a' }} {{ s|capitalize }} {{ s|wordcount }}
{{ d|tojson }} {{ [1.0, 1e100, none, true, 'é"\\\n\u0001/', [], {}]|tojson }} {{ u|tojson(ensure_ascii=true) }} {{ d|tojson(sort_keys=true) }} {{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }} {{ (1, 2)|tojson }} {{ {}|tojson(indent=2) }}
{{ d|tojson(indent=2) }} {{ d|tojson(separators=(',', ':')) }} {{ [[], [1]]|tojson(indent=1) }}
{{ nope|tojson }}
{{ range(2)|tojson }}
{{ d.items()|tojson }}
{{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ s is string }} {{ n is number }} {{ t is number }} {{ t is boolean }} {{ n is integer }} {{ f is float }} {{ t is integer }} {{ d is mapping }} {{ l is sequence }} {{ s is sequence }} {{ d is sequence }} {{ n is iterable }} {{ l is iterable }} {{ nope is iterable }} {{ nope is sequence }} {{ none is iterable }} {{ range(2) is sequence }}
{{ t is true }} {{ 1 is true }} {{ false is false }} {{ none is not none }} {{ n is eq 7 }} {{ n is ne(7) }} {{ n is gt 5 }} {{ n is lt(5) }} {{ n is ge 7 and n is le 7 }} {{ 2 is in l }} {{ n is sameas 7 }} {{ 'a' is lower }} {{ 'A' is upper }} {{ 'upper' is filter }} {{ 'odd' is test }} {{ range is callable }} {{ s is callable }} {{ s is not defined or true }} {{ n is == 7 }}
{{ n is defined and n is number }} {{ (n is odd) is true }} {{ n is divisibleby 7 if t else 0 }} {{ not n is odd }}
{{ n is odd is true }}
{% set c = cycler('a', 'b', 'c') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }} {% set j = joiner('|') %}{{ j() }}x{{ j() }}y{{ j() }}
{{ dict(a=1, b=2) }} {{ dict([('x', 1)], y=2) }} {{ dict(d).b }}
{{ raise_exception('my own words') }}
{{ strftime_now('%Y-%m-%d %H:%M:%S %B %d %b %A %j') }}
{{ s|upper|lower|length + 1 }} {{ (s|upper)[0] }} {{ s|upper ~ 'x' }} {{ 1 if s|length > 3 else 2 }} {{ l|map('string')|join|int + 1 }}
{{ l|length == 3 }} {{ s|default('x')|upper == 'HELLO, WORLD' }} {{ 'a' if 'x' not in s and 'y' not in s }}
{{ s.upper().lower().split('o')[0] }} {{ (s ~ 'a').endswith('a') }} {{ [s, 'b'][1] }} {{ {'a': s}['a'][0] }}
{{ '' ~ [] ~ {} ~ () }} {{ [[]] }} {{ [''] }} {{ {'': ''} }}
{% macro m(x) %}{{ x }}{% endmacro %}{{ m(*[1]) }} {{ m(**{'x': 2}) }} {{ [1, 2, 3]|batch(*[2])|list }}
{{ l == [3, 1, 2] }} {{ d == {'a': [1, {'x': none}], 'C': 'z', 'b': 1} }} {{ (1, 2) == [1, 2] }} {{ l != l }} {{ nope == nope2 }} {{ nope == '' }} {{ nope == none }}
{{ 10|string|length }}{{ 1.0 }}{{ 1.50 }}{{ 100000000000000000000.0 }}{{ 1e-5 }}{{ 12345678901234567.0 }}
{{ [1,2,3,][1] }} {{ (1,2,)[0] }} {{ {'a':1,}.a }} {{ range(3,)|list }}
{{ people|map(attribute='name')|sort|join(' ') }} {{ people|map(attribute='name')|first }} {{ people|map(attribute='name')|last }}
{{ [3, 4]|last }} {{ 'x' * 3 ~ 'y' }} {{ 2 * 3 ~ 4 }} {{ 1 ~ 2 + 3 }}
{% for i in range(3) %}{% set outer = loop %}{% for j in range(2) %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}
{% for x in l|sort %}{{ x }}{{ ',' if not loop.last }}{% endfor %}
{% for x in people if x.age == 30 %}{{ loop.index }}{{ x.name }}{% else %}nobody{% endfor %} {% for x in people if x.age == 99 %}a{% else %}nobody{% endfor %}
{{ 'caf\u00e9' }} {{ 'ÀÉ'|lower }} {{ 'straße'|capitalize }} {{ 'ǆ'|upper }}
{{ nope ~ 'x' }} {{ [nope] }} {{ nope|length }} {{ nope|list }} {{ nope|join }}| {{ nope|upper }}| {{ nope|trim }}|
{{ nope + 1 }}
{{ nope < 1 }}
{{ nope[0] }}
{{ -nope }}
{{ none.x is defined }} {{ none['x'] is defined }} {{ n.x is defined }} {{ l.x is defined }}
{{ none.x.y }}
{{ n() }}
{{ 'a'|int('b') }} {{ 'abc'[1] }} {{ 'abc'[5] is defined }} {{ 'abc'['x'] is defined }}
'''

# Those that hold newlines, or are about them.
MORE = [
    '{{ \'a\' \'b\' "c" }} {{ \'x\\\'y\' }} {{ "\\u0041\\x42\\103\\n|" }} {{ \'\\q\' }} {{ \'a\\\nb\' }}',
    '{# comment #}a{#- strip -#}  b {# multi\nline #} c',
    '  {% if true %}\n  keep\n  {% endif %}\nafter',
    'x  {% if true %}\ny {% endif %}\n\nz',
    '  {%+ if true %}kept{% endif +%}\n\nend',
    '{{ s }}\n\n',
    "{% if true %}\n\n{{ raise_exception('on line ' ~ 3) }}{% endif %}",
    "a\r\n{% if t %}\r\nb\r\n{% endif %}\r\nc\r\n", "a\rb\r\n", "\n", "", "a\n\n", "{% if t %}\n\n\nx{% endif %}\n", "\t{% if t %}\tx\n\t{% endif %}\t\ny",
    "{{ 'a\r\nb' }}", "{{ n }}\n{{ n }}\n", "{%- if t %} x{% endif -%}\n\n y", "{# c #}\n{# d #}\n  {#- e #} f", "  {{ n }}\n  {%- set q = 1 -%}  \n z",
]

seen = set()
print(json.dumps({"vars": V}, ensure_ascii=False))
for source in CASES.strip("\n").split("\n") + MORE:
    if source in seen:
        continue
    seen.add(source)
    row = {"source": source}
    try:
        row["rendered"] = env.from_string(source).render(**V)
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"
    if "object at 0x" in row.get("rendered", ""):
        raise SystemExit("an address in " + source)
    print(json.dumps(row, ensure_ascii=False))
