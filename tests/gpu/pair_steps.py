"""What pair.py does step by step: each with a limit of its own and one for all, a figure kept as soon as it is there, what failed told at the end."""
import json, os, signal, subprocess, time

OUT = os.environ.get('OUT', '.')
BEGAN = time.monotonic()
processes, lines, steps = [], [], []


def say(*words):
    print('%6.1f' % (time.monotonic() - BEGAN), *words, flush=True)


def keep(what):
    """A figure, kept at once."""
    lines.append(what)
    with open(os.path.join(OUT, 'pair.jsonl'), 'a') as f:
        f.write(json.dumps(what) + '\n')


def left(a):
    return a.until - (time.monotonic() - BEGAN)


def step(a, name, seconds, work, needs=5):
    """Does it, within its own limit and what is left, where that is enough; says and keeps what became of it. None where it failed."""
    limit = min(seconds, left(a))
    begin = time.monotonic()
    if limit < needs:
        say('no time left for', name)
        steps.append((name, 'no time', 0))
        return None
    try:
        result, word = work(limit), 'ok'
    except Exception as e:
        result, word = None, f'{type(e).__name__}: {e}'[:400]
        keep({'step': name, 'failed': word})
    steps.append((name, word, time.monotonic() - begin))
    say(name, word, '%.1f s' % (time.monotonic() - begin))
    return result


def run(command, seconds, log):
    """Its stdout; what it says otherwise goes to pair.log. Whatever its exit code, output counts if there is some."""
    with open(os.path.join(OUT, 'pair.log'), 'a') as err:
        err.write(f'\n---- {log}: {" ".join(map(str, command))}\n')
        err.flush()
        p = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=err, text=True, start_new_session=True)
        processes.append(p)
        try:
            out, _ = p.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            kill_group(p)
            raise TimeoutError(f'{log}: no end in {seconds:.0f} s') from None
    if not out.strip():
        raise RuntimeError(f'{log}: exit code {p.returncode}, and no output')
    return out


def kill_group(p):
    try:
        os.killpg(p.pid, signal.SIGKILL)
    except OSError:
        pass
    p.wait()
