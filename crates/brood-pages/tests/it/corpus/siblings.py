"""A template process that forks siblings, as a cohort does.

usage: siblings.py near|divergent COUNT

Prints "ready" before forking, the siblings' pids when all have done their work. All exit when standard input closes.
"""
import ast, collections, decimal, difflib, email.parser, fractions, hashlib, inspect, json, logging, os, random, re
import sqlite3, string, sys, textwrap, tokenize, traceback, unittest, urllib.parse, xml.dom.minidom, zlib

try:
    import numpy
except ImportError:
    numpy = None

SOURCES = [ast, collections, decimal, difflib, inspect, json, logging, random, re, textwrap, tokenize, traceback, unittest]
kept = {}


def parse_sources(rng, count):
    for module in rng.sample(SOURCES, count):
        text = open(module.__file__).read()
        kept[module.__name__] = (ast.parse(text), collections.Counter(re.findall(r"\w+", text)))


def records(rng, count):
    rows = [{"id": i, "name": "".join(rng.choices(string.ascii_lowercase, k=12)), "score": rng.random(),
             "tags": rng.sample(["red", "green", "blue", "cyan", "black"], 2)} for i in range(count)]
    kept["rows"] = json.loads(json.dumps(rows))
    kept["by_name"] = {row["name"]: row for row in rows}


def database(rng, count):
    connection = sqlite3.connect(":memory:")
    connection.execute("create table t (id integer primary key, name text, value real)")
    connection.executemany("insert into t values (?, ?, ?)",
                           ((i, hashlib.md5(b"%d" % i).hexdigest(), rng.random()) for i in range(count)))
    kept["database"] = connection
    kept["sums"] = connection.execute("select substr(name, 1, 2), sum(value) from t group by 1").fetchall()


def numbers(rng, count):
    kept["decimals"] = [decimal.Decimal(rng.random()).sqrt() for _ in range(count)]
    kept["fractions"] = [fractions.Fraction(rng.randrange(1, 999), rng.randrange(1, 999)) for _ in range(count)]
    if numpy is not None:
        matrix = numpy.random.default_rng(rng.randrange(99)).normal(size=(160, 160))
        kept["svd"] = numpy.linalg.svd(matrix)


def documents(rng, count):
    root = "".join(f"<item id='{i}'>{rng.random()}</item>" for i in range(count))
    kept["xml"] = xml.dom.minidom.parseString(f"<list>{root}</list>")
    kept["mail"] = [email.parser.Parser().parsestr(f"From: a{i}@b\nSubject: {rng.random()}\n\nbody {i}\n")
                    for i in range(count // 4)]
    kept["packed"] = [zlib.compress(bytes(rng.randbytes(200))) for _ in range(count // 4)]


def near(index):
    """The same work with some other values, as rollouts of one task do."""
    rng = random.Random(7)
    parse_sources(rng, 3)
    records(rng, 1500)
    database(rng, 1000)
    rng = random.Random(index)
    kept["answers"] = [rng.random() for _ in range(400)]
    kept["rows"][index * 7 % 1500]["score"] = rng.random()


def divergent(index):
    """Other work in each sibling."""
    rng = random.Random(1000 + index)
    tasks = [lambda: parse_sources(rng, 4), lambda: records(rng, 3000), lambda: database(rng, 4000),
             lambda: numbers(rng, 4000), lambda: documents(rng, 1200)]
    tasks[index % len(tasks)]()
    tasks[(index * 3 + 1) % len(tasks)]()


def main():
    work = {"near": near, "divergent": divergent}[sys.argv[1]]
    count = int(sys.argv[2])
    records(random.Random(1), 500)
    parse_sources(random.Random(1), 2)
    print("ready", flush=True)
    sys.stdin.readline()
    done_read, done_write = os.pipe()
    stay_read, stay_write = os.pipe()
    # Nothing is kept from one fork to the next: all siblings start from the same heap, as from one checkpoint.
    for index in range(count):
        if os.fork() == 0:
            os.close(stay_write)
            work(index)
            os.write(done_write, f"{os.getpid():8}".encode())
            os.read(stay_read, 1)
            os._exit(0)
    print(*(os.read(done_read, 8).decode() for _ in range(count)), flush=True)
    sys.stdin.read()
    os.close(stay_write)
    for _ in range(count):
        os.wait()


main()
