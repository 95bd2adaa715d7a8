#!/usr/bin/env python3
"""Writes sessions.jsonl: a small trace of our own in Mooncake's form. Conversations grow turn by turn, some begin with the same three blocks.

Lines and their order follow from the seed; a turn's prompt holds the one before it, so its hash ids begin with the same ids.
"""
import json
import random

random.seed(7)
count = 0


def fresh():
    global count
    count += 1
    return count


system = [fresh() for _ in range(3)]
sessions, lines, at = [], [], 0
for _ in range(240):
    at += int(random.expovariate(1 / 90))
    if sessions and random.random() < 0.6:
        session = random.choice(sessions[-12:])
    else:
        session = {"ids": list(system[: random.choice([0, 1, 3])])}
        session["tokens"] = 512 * len(session["ids"])
        sessions.append(session)
    session["tokens"] += int(min(4000, random.lognormvariate(6.5, 0.9))) + 20
    while (len(session["ids"]) + 1) * 512 <= session["tokens"]:
        session["ids"].append(fresh())
    ids = session["ids"] + ([fresh()] if session["tokens"] % 512 else [])
    answer = max(1, int(random.lognormvariate(3.5, 0.8)))
    lines.append({"timestamp": at, "input_length": session["tokens"], "output_length": answer, "hash_ids": ids})
with open("sessions.jsonl", "w") as file:
    file.writelines(json.dumps(line) + "\n" for line in lines)
