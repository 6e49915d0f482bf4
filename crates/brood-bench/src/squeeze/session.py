# A stateful session: one expression or statement a line in, one line out.
import ast, decimal, hashlib, json, random, re, sqlite3, sys, time, zlib
import numpy as np

state = {"records": {str(i): {"id": i, "name": "record %d" % i, "values": [i, i * i % 97, i % 7]} for i in range(20000)}}
matrix = np.arange(250000, dtype=np.float64).reshape(500, 500) % 1013
# One word differs in each page: below 4 MiB, so that no huge pages are asked for.
touched = np.arange(1000 * 512, dtype=np.uint64)


def near(seed):
    """The same work with other values, as rollouts of one task do it."""
    draw = random.Random(seed)
    for key in draw.sample(sorted(state["records"]), 400):
        state["records"][key]["values"].append(draw.randrange(1000))
    text = json.dumps({key: state["records"][key] for key in list(state["records"])[:2000]})
    state["copy"] = json.loads(text)
    state["sum"] = float((matrix * (1 + seed % 3)).sum())
    touched[::512] = seed
    return hashlib.md5(text.encode()).hexdigest()


def divergent(seed):
    """Another task each."""
    draw = random.Random(seed)
    kind = seed % 8
    if kind == 0:
        state["own"] = json.loads(json.dumps([[draw.random() for _ in range(20)] for _ in range(4000)]))
    elif kind == 1:
        source = "\n".join("def f%d(a, b):\n    return a * %d + b" % (i, draw.randrange(99)) for i in range(1500))
        state["own"] = ast.parse(source)
    elif kind == 2:
        text = " ".join(draw.choice(["alpha", "beta", "gamma", "delta"]) + str(i) for i in range(60000))
        state["own"] = re.findall(r"(\w)(\w+?)(\d+)", text)
    elif kind == 3:
        database = sqlite3.connect(":memory:")
        database.execute("create table t (a integer, b text)")
        database.executemany("insert into t values (?, ?)", ((i, str(draw.random())) for i in range(30000)))
        state["own"] = (database, database.execute("select b from t order by b").fetchall())
    elif kind == 4:
        state["own"] = np.linalg.svd(np.random.default_rng(seed).random((300, 300)))
    elif kind == 5:
        state["own"] = [decimal.Decimal(draw.randrange(10**9)).sqrt() for _ in range(30000)]
    elif kind == 6:
        state["own"] = ("%d " % seed * 200000).split()
    else:
        state["own"] = [zlib.compress(draw.randbytes(200) * 20) for _ in range(6000)]
    touched[::512] = seed
    return str(kind)


def touch():
    """How long each touch of a page takes, in nanoseconds; no two next to each other."""
    order = list(range(0, 1000, 4))
    random.shuffle(order)
    clock, times = time.perf_counter_ns, []
    for page in order:
        start = clock()
        touched[page * 512]
        times.append(clock() - start)
    return json.dumps(times)


print("ready", flush=True)
for line in sys.stdin:
    print(eval(line), flush=True)
