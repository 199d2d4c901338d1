"""A database that maps its file: mapped_database.py make FILE MIB | ask FILE

`ask` reads rows of SQLite's as YCSB asks for them in the thesis: four of five from a fifth of the rows, each otherwise with the same
probability. It says "ready" when it has the file open, and goes on until its input ends."""

import os
import random
import sqlite3
import sys

COLUMN = 100  # bytes of the one field of a row
ROWS_PER_MIB = (1 << 20) // (COLUMN + 20)
RATE = 2000  # rows a second


def make(path, mib):
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE entries (id INTEGER PRIMARY KEY, field TEXT)")
    rows = ((i, os.urandom(COLUMN // 2).hex()) for i in range(mib * ROWS_PER_MIB))
    database.executemany("INSERT INTO entries VALUES (?, ?)", rows)
    database.commit()


def ask(path):
    import select
    import time

    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    database.execute(f"PRAGMA mmap_size = {os.path.getsize(path)}")
    [[rows]] = database.execute("SELECT MAX(id) FROM entries")
    chance = random.Random(os.getpid())
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0] or sys.stdin.read(1):
        for _ in range(RATE // 50):
            hot = chance.random() < 0.8
            key = chance.randrange(rows // 5) if hot else chance.randrange(rows // 5, rows)
            database.execute("SELECT field FROM entries WHERE id = ?", [key]).fetchone()
        time.sleep(0.02)


{"make": lambda path, mib: make(path, int(mib)), "ask": ask}[sys.argv[1]](*sys.argv[2:])
