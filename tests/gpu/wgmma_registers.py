#!/usr/bin/env python3
"""wgmma_registers.py [FILE…]: reads the machine code of programs, objects or cubins and says where a register that a wgmma reads A from, or
sums in, is touched before the wait for it. Without files it tries itself on two pieces of code, of which one is wrong.

ptxas knows which registers a wgmma sums in, but not that those of A are in use until the wait: it gives them to other values as soon as the
instruction is issued. Commit 23a9bec had that fault in 12 of 15 kernels, and the GPU's tests saw it now and then. Nothing runs here: each
wgmma's paths are walked to the waits behind it. Of a program only the parts that have wgmma are read (PARTS), where parts have names: a
build without line numbers has none, and all are. Needs cuobjdump (CUDA's, from PATH or $CUOBJDUMP). Exit code 1 and a line a finding,
eight a kernel, or one that there is no wgmma in a file; 0; 77 without cuobjdump."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

PARTS = re.compile(r"linear_(wide|deep|prompt|half)|attention_squad")
LINE = re.compile(r"^\s+/\*([0-9a-f]{4,6})\*/\s+(.*?)\s*;")
GUARD = re.compile(r"^@!?U?P\w+\s+")
GMMA = re.compile(r"[IHQ]GMMA\.64x(\d+)x\d+\S* R(\d+), (R\d+|gdesc\[\w+\]),")
WAIT = re.compile(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x([0-9a-f]+)")
NO_RESULT = ("ST", "RED", "BAR", "SYNCS", "BRA", "ISETP", "FSETP", "DSETP", "HSETP2")
GROUPS_MAX = 4  # committed behind one that is waited for

RIGHT = """Function : right
    /*0000*/ IGMMA.64x32x32.S8.S8 R24, R40, gdesc[UR4], RZ, !UPT, gsb0 ;
    /*0010*/ LDS.128 R44, [R3] ;
    /*0020*/ WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
    /*0030*/ LOP3.LUT R40, R44, 0xf0f0f0f0, R40, 0xe2, !PT ;
    /*0040*/ EXIT ;"""
WRONG = """Function : wrong
    /*0000*/ IGMMA.64x32x32.S8.S8 R24, R40, gdesc[UR4], RZ, !UPT, gsb0 ;
    /*0010*/ @P0 BRA 0x30 ;
    /*0020*/ LDS.128 R40, [R3] ;
    /*0030*/ WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
    /*0040*/ EXIT ;"""


def functions(text):
    """Of cuobjdump's text: names, and their instructions as (address, text)."""
    name, code = None, []
    for line in text.splitlines():
        if "Function :" in line:
            if name:
                yield name, code
            name, code = line.split(":", 1)[1].strip(), []
        elif name and (m := LINE.match(line)):
            code.append((int(m.group(1), 16), m.group(2)))
    if name:
        yield name, code


def registers(text):
    """What an instruction writes, and what it reads."""
    op, _, rest = GUARD.sub("", text).partition(" ")
    width = 4 if ".128" in op else 2 if ".64" in op or op.startswith(("CS2R", "IMAD.WIDE")) else 1
    written, read = set(), set()
    for i, operand in enumerate(rest.split(",")):
        for n in map(int, re.findall(r"\bR(\d+)\b", operand)):
            if i == 0 and "[" not in operand and not op.startswith(NO_RESULT):
                written |= set(range(n, n + width))
            else:
                read |= set(range(n, n + (width if "[" not in operand else 2 if ".64" in operand else 1)))
    return written, read


def successors(code, at, index):
    text = code[at][1]
    body = GUARD.sub("", text)
    to = re.search(r"0x([0-9a-f]+)$", body) if body.startswith("BRA") else None
    out = [index[int(to.group(1), 16)]] if to and int(to.group(1), 16) in index else []
    ends = body == text and (body.startswith(("EXIT", "RET", "BPT")) or re.match(r"BRA\S* 0x", body))
    return out if ends or at + 1 == len(code) else out + [at + 1]


def check(code):
    """How many wgmma there are, and (address, text, wgmma's address, registers) of what touches theirs too early."""
    index = {address: i for i, (address, _) in enumerate(code)}
    found, count = set(), 0
    for i, (address, text) in enumerate(code):
        m = GMMA.search(text)
        if not m:
            continue
        count += 1
        sums = set(range(int(m.group(2)), int(m.group(2)) + int(m.group(1)) // 2))
        a = set(range(int(m.group(3)[1:]), int(m.group(3)[1:]) + 4)) if m.group(3)[0] == "R" else set()
        # From here on: where, and how many groups were committed behind this one's (-1: not even its own).
        seen, todo = set(), [(s, 0 if "gsb0" in text else -1) for s in successors(code, i, index)]
        while todo:
            at, behind = todo.pop()
            if (at, behind) in seen or behind > GROUPS_MAX:
                continue
            seen.add((at, behind))
            what = code[at][1]
            wait, other = WAIT.search(what), GMMA.search(what)
            if wait and int(wait.group(1), 16) <= behind:
                continue
            if other:  # which may go on with the same sums
                hit = a & set(range(int(other.group(2)), int(other.group(2)) + int(other.group(1)) // 2))
                behind += "gsb0" in what
            else:
                written, read = registers(what)
                hit = (written & a) | ((written | read) & sums)
            if hit:
                found.add((code[at][0], what, address, tuple(sorted(hit))))
            todo += [(s, behind) for s in successors(code, at, index)]
    return count, sorted(found)


def report(text):
    """Prints a line a kernel with wgmma; how many there are, and how many findings."""
    kernels, bad = 0, 0
    for name, code in functions(text):
        count, found = check(code)
        if count != 0:
            kernels += 1
            print(f"{name}: {count} wgmma, {len(found)} findings")
        for where, what, begin, hit in found[:8]:
            print(f"  {where:05x} {what}: R{', R'.join(map(str, hit))} in use by the wgmma at {begin:05x}")
        bad += len(found)
    return kernels, bad


def sass(tool, path):
    """Machine code of a file: of its parts that have wgmma where it has several."""
    path = os.path.abspath(path)
    listing = subprocess.run([tool, "-lelf", path], capture_output=True, text=True).stdout
    parts = [line.split()[-1] for line in listing.splitlines() if line.startswith("ELF file")]
    if len(parts) < 2:
        return subprocess.run([tool, "--dump-sass", path], capture_output=True, text=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        text = ""
        for part in [p for p in parts if PARTS.search(p)] or parts:
            subprocess.run([tool, "-xelf", part, path], cwd=folder, capture_output=True, check=True)
            text += subprocess.run([tool, "--dump-sass", os.path.join(folder, part)], capture_output=True, text=True,
                                   check=True).stdout
        return text


def main(paths):
    if not paths:
        good = report(RIGHT) == (1, 0) and report(WRONG) == (1, 1)
        print("as it should be" if good else "wrong")
        return 0 if good else 1
    tool = os.environ.get("CUOBJDUMP") or shutil.which("cuobjdump") or "/usr/local/cuda/bin/cuobjdump"
    if not os.path.exists(tool):
        print("no cuobjdump here")
        return 77
    code = 0
    for path in paths:
        kernels, bad = report(sass(tool, path))
        if kernels == 0:
            print(f"{path}: no wgmma there: nothing was looked at")
        code = 1 if kernels == 0 or bad else code
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
