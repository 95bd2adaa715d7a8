#!/usr/bin/env python3
"""Checks every #include of the tree against tests/tidy/layers.txt. Exit 1 with one line a breach."""
import os, re, subprocess, sys

root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.chdir(root)
rules = {}
for line in open('tests/tidy/layers.txt'):
    line = line.split('#')[0].strip()
    if line:
        folder, _, may = line.partition(':')
        rules[folder.strip()] = may.split()

# Headers of the C library, POSIX and Linux are free everywhere; these are third parties.
third = {'yaml.h', 'jansson.h', 'pcre2.h', 'utf8proc.h', 'microhttpd.h', 'xxhash.h', 'immintrin.h', 'x86intrin.h', 'cpuid.h',
         'nng/nng.h', 'nng/supplemental/tls/tls.h', 'mbedtls/md.h', 'ucp/api/ucp.h', 'nccl.h', 'cuda_runtime.h', 'cublasLt.h', 'protobuf-c/protobuf-c.h', 'check.h'}
# In a program's folder every file is a core unless it is an edge, so that a new file is held to the stricter rule.
edges = {'router': 'call call_answer calls choice gateway gateway_call gateway_request http http_answer http_cluster main metrics notes openai openai_input openai_parameters openai_read openai_write text text_guard trace trace_impl trace_write'.split(),
         'decode-node': ['main', 'prove'], 'prefill-node': ['main', 'readers']}
core_may_not_call = re.compile(r'\b(bt_time_now|clock_gettime|gettimeofday|time\(NULL\)|getrandom|rand|random|socket|usleep|nanosleep|fopen|pthread_\w+)\s*\(')
core_may_not = ('common/net', 'common/config', 'common/json', 'common/text')


def folder_of(path):
    best = ''
    for folder in rules:
        if path.startswith(folder + '/') and len(folder) > len(best):
            best = folder
    return best


def is_core(path):
    folder, _, name = path.rpartition('/')
    return folder in edges and name.rsplit('.', 1)[0] not in edges[folder]


def inside(path, may):
    return path == may or path.startswith(may.rstrip('/') + '/')


bad = []
files = subprocess.check_output(['git', 'ls-files', '*.c', '*.h', '*.cu', '*.cuh'], text=True).split()
for path in files:
    folder = folder_of(path)
    if not folder:
        bad.append(f'{path}: no folder of tests/tidy/layers.txt holds it')
        continue
    may = rules[folder]
    if '*' in may:
        continue
    for number, line in enumerate(open(path, errors='replace'), 1):
        if is_core(path) and core_may_not_call.search(line.split('//')[0]):
            bad.append(f'{path}:{number}: a core reads no clock, socket, thread or chance')
        m = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
        if not m:
            continue
        kind, name = m.groups()
        if kind == '<':
            if name in third and f'<{name}>' not in may:
                bad.append(f'{path}:{number}: <{name}> is not for {folder}')
        elif '/' not in name:
            bad.append(f'{path}:{number}: "{name}" is not written from the root')
        elif not (inside(name, folder) or any(inside(name, x) for x in may)):
            bad.append(f'{path}:{number}: {folder} may not include {name}')
        if is_core(path) and kind == '"' and name.startswith(core_may_not):
            bad.append(f'{path}:{number}: a core may not include {name}')
for line in bad:
    print(line)
print(f'layers: {len(files)} files, {len(bad)} breaches')
sys.exit(bool(bad))
