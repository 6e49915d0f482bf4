# The session that is measured: numpy loaded, some state, one expression a line. Answers one line each.
import os
import sys

import numpy

PAGE_BYTES = 4096
state = {"words": {str(number): number for number in range(20000)}, "calls": 0}
pages = numpy.zeros((8192, PAGE_BYTES), dtype=numpy.uint8)
pages[:] = 1
ballast = []


def work(count, files=5):
    """A tool call: changes pages of the heap and files of the working tree."""
    state["calls"] += 1
    pages[:count, ::64] += 1
    for number in range(files):
        with open(f"/tree/{state['calls'] % 40}/{number}", "w") as file:
            file.write(f"{state['calls']}\n" * 100)
    return state["calls"]


def grow(megabytes):
    """Holds that much more memory, all of it written."""
    ballast.append(numpy.ones(megabytes << 20, dtype=numpy.uint8))
    return len(ballast)


def compute():
    """Work of the kind that tool calls do: objects made and dropped, text, sorting, arrays."""
    import json
    import time
    begin = time.perf_counter()
    for _ in range(6):
        records = [{"name": str(n), "value": n * 7 % 1009, "tags": [n, n + 1]} for n in range(12000)]
        records.sort(key=lambda record: (record["value"], record["name"]))
        json.loads(json.dumps(records))
        numpy.sort(numpy.arange(300000) * 7919 % 100003)
    return time.perf_counter() - begin


open("/ready", "w").close()
for line in sys.stdin:
    print(eval(line), flush=True)
