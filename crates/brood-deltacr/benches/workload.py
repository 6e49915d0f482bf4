"""A Python process with numpy that changes a given number of pages on demand.

Reads one line at a time: "touch N" writes one byte in each of N pages in a row and builds some
objects, "scatter N" takes pages that aren't neighbours, "sum" answers with a number that depends on all pages, "quit" ends.
"""
import sys
import numpy

PAGE = 4096
pages = bytearray(4096 * PAGE)
for at in range(0, len(pages), PAGE):
    pages[at] = 1
array = numpy.arange(500_000, dtype=numpy.float64)
generation = 0
print("ready", flush=True)
while True:
    line = sys.stdin.buffer.raw.readline()
    if not line or line == b"quit\n":
        break
    command, _, argument = line.decode().strip().partition(" ")
    if command in ("touch", "scatter"):
        generation += 1
        stride = 1 if command == "touch" else 7
        for index in range(int(argument)):
            pages[(index * stride % 4096) * PAGE] = generation & 255
        values = sorted({str(index): index for index in range(200)})
        print("ok", flush=True)
    else:
        total = int(array.sum()) + sum(pages[::PAGE]) + generation
        print(total, flush=True)
