//! Figures of the network: `cargo bench -p brood-network`, as root. Prints one JSON object.
//!
//! Everything runs in network namespaces of its own, so nothing on the host's real network changes. Times are of the
//! wall clock; `cpu` is the processor time of the whole process, its background threads included.

fn main() {
    println!("{}", measure::all());
}

#[path = "../tests/network/world.rs"]
mod world;

mod measure {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use brood_network::{Network, NetworkPolicy};
    use rustix::time::{ClockId, clock_gettime};

    use crate::world::{Namespace, World};

    pub fn all() -> String {
        let world = World::new();
        let network = world.start(World::configuration());
        let parts = [
            prepare(&network),
            throughput(&world, &network),
            loopback(&network),
            many(&world, &network),
            cycles(&world, &network),
        ];
        format!("{{{}}}", parts.join(","))
    }

    fn cpu() -> Duration {
        let now = clock_gettime(ClockId::ProcessCPUTime);
        Duration::try_from(now).unwrap_or_default()
    }

    fn quantiles(name: &str, mut samples: Vec<Duration>) -> String {
        samples.sort_unstable();
        let at = |quantile: f64| {
            let position = ((samples.len() - 1) as f64 * quantile).round() as usize;
            samples[position].as_secs_f64() * 1e3
        };
        let mean = samples.iter().sum::<Duration>().as_secs_f64() * 1e3 / samples.len() as f64;
        format!(
            "\"{name}\":{{\"p50\":{:.3},\"p95\":{:.3},\"p99\":{:.3},\"mean\":{mean:.3},\"n\":{}}}",
            at(0.5),
            at(0.95),
            at(0.99),
            samples.len()
        )
    }

    fn prepare(network: &Network) -> String {
        const COUNT: usize = 200;
        let namespaces: Vec<Namespace> = (0..COUNT).map(|_| Namespace::new()).collect();
        let mut prepare_ms = Vec::new();
        let mut prepare_cpu_ms = Vec::new();
        let mut prepared = Vec::new();
        for namespace in &namespaces {
            let (start, start_cpu) = (Instant::now(), cpu());
            prepared.push(network.prepare(namespace.descriptor()).expect("prepared"));
            prepare_ms.push(start.elapsed());
            prepare_cpu_ms.push(cpu().saturating_sub(start_cpu));
        }
        let mut attach_ms = Vec::new();
        let mut attachments = Vec::new();
        for one in prepared {
            let start = Instant::now();
            attachments.push(one.attach(NetworkPolicy::all()).expect("attached"));
            attach_ms.push(start.elapsed());
        }
        let mut set_policy_ms = Vec::new();
        for one in &attachments {
            let start = Instant::now();
            one.set_policy(NetworkPolicy::none()).expect("changed");
            set_policy_ms.push(start.elapsed());
        }
        let mut drop_ms = Vec::new();
        let (start_all, start_cpu) = (Instant::now(), cpu());
        let last = attachments.pop().expect("there are many");
        for one in attachments {
            let start = Instant::now();
            drop(one);
            drop_ms.push(start.elapsed());
        }
        last.detach();
        let detached_ms = start_all.elapsed().as_secs_f64() * 1e3 / COUNT as f64;
        let detached_cpu_ms = cpu().saturating_sub(start_cpu).as_secs_f64() * 1e3 / COUNT as f64;
        [
            quantiles("prepare_ms", prepare_ms),
            quantiles("prepare_cpu_ms", prepare_cpu_ms),
            quantiles("attach_prepared_ms", attach_ms),
            quantiles("set_policy_ms", set_policy_ms),
            quantiles("drop_ms", drop_ms),
            format!("\"detach_ms\":{detached_ms:.3},\"detach_cpu_ms\":{detached_cpu_ms:.3}"),
        ]
        .join(",")
    }

    const STREAM_BYTES: usize = 64 << 20;
    const ROUNDS: usize = 31;

    /// Bytes per second from a client in `from` to a server at `address` in `to`, or the other way.
    fn rate(from: &Namespace, to: &Namespace, address: &str, is_download: bool) -> f64 {
        let listener = to.run(|| TcpListener::bind(address).expect("a free port"));
        let sender = |mut stream: TcpStream| {
            let part = vec![7; 256 << 10];
            for _ in 0..STREAM_BYTES / part.len() {
                stream.write_all(&part).expect("sent");
            }
        };
        let receiver = |mut stream: TcpStream| {
            let mut part = vec![0; 256 << 10];
            while stream.read(&mut part).expect("received") > 0 {}
        };
        let start = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (stream, _) = listener.accept().expect("connected");
                if is_download { sender(stream) } else { receiver(stream) }
            });
            from.run(|| {
                let stream = TcpStream::connect(address).expect("connected");
                if is_download { receiver(stream) } else { sender(stream) }
            });
        });
        STREAM_BYTES as f64 / start.elapsed().as_secs_f64()
    }

    /// Two ways alternately, so that other work on the machine meets both; the medians, in MB/s, and their ratio.
    fn compare(name: &str, plain: impl Fn() -> f64, ours: impl Fn() -> f64) -> String {
        let mut rates: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            rates[0].push(plain());
            rates[1].push(ours());
        }
        let [plain, ours] = rates.map(|mut rates| {
            rates.sort_unstable_by(f64::total_cmp);
            rates[ROUNDS / 2] / 1e6
        });
        format!("\"{name}\":{{\"plain\":{plain:.0},\"sandbox\":{ours:.0},\"ratio\":{:.3}}}", ours / plain)
    }

    /// To and from a server on the host: over a veth without any rules (in another host's network, since rules see all
    /// packets of their own), and out of a sandbox. Then to a server behind the host, with address translation.
    fn throughput(world: &World, network: &Network) -> String {
        let bare_host = Namespace::new();
        let bare = Namespace::new();
        bare_host.connect_to(&bare, "bare0", "10.66.0.1/24", "10.66.0.2/24");
        let far = Namespace::new();
        bare_host.connect_to(&far, "far0", "10.67.0.1/24", "10.67.0.2/24");
        bare_host.shell("echo 1 > /proc/sys/net/ipv4/ip_forward");
        bare.shell("ip route add default via 10.66.0.1");
        far.shell("ip route add default via 10.67.0.1");
        let sandbox = Namespace::new();
        let mut policy = NetworkPolicy::all();
        policy.open = ["10.77.0.2".parse().expect("an address")].into();
        let attachment = network.attach(sandbox.descriptor(), policy).expect("attached");
        let mut parts = Vec::new();
        for (direction, is_download) in [("upload", false), ("download", true)] {
            parts.push(compare(
                &format!("host_{direction}_mbps"),
                || rate(&bare, &bare_host, "10.66.0.1:7000", is_download),
                || rate(&sandbox, &world.host, "10.77.0.2:7000", is_download),
            ));
            parts.push(compare(
                &format!("beyond_{direction}_mbps"),
                || rate(&bare, &far, "10.67.0.2:7000", is_download),
                || rate(&sandbox, &world.internet, "203.0.113.1:7000", is_download),
            ));
        }
        attachment.detach();
        parts.join(",")
    }

    fn loopback(network: &Network) -> String {
        let bare = Namespace::new();
        bare.shell("ip link set lo up");
        let sandbox = Namespace::new();
        let attachment = network.attach(sandbox.descriptor(), NetworkPolicy::all()).expect("attached");
        let part = compare(
            "loopback_mbps",
            || rate(&bare, &bare, "127.0.0.1:7000", false),
            || rate(&sandbox, &sandbox, "127.0.0.1:7000", false),
        );
        attachment.detach();
        part
    }

    /// Five hundred attached at once, each of which gets out.
    fn many(world: &World, network: &Network) -> String {
        const COUNT: usize = 500;
        let namespaces: Vec<Namespace> = (0..COUNT).map(|_| Namespace::new()).collect();
        let listener = world.internet.run(|| TcpListener::bind("203.0.113.1:8000").expect("a free port"));
        let server = std::thread::spawn(move || {
            for _ in 0..COUNT {
                let (mut stream, _) = listener.accept().expect("connected");
                stream.write_all(b"x").expect("sent");
            }
        });
        let mut attach_ms = Vec::new();
        let mut attachments = Vec::new();
        for namespace in &namespaces {
            let start = Instant::now();
            attachments.push(network.attach(namespace.descriptor(), NetworkPolicy::all()).expect("attached"));
            attach_ms.push(start.elapsed());
        }
        let mut connect_ms = Vec::new();
        for namespace in &namespaces {
            connect_ms.push(namespace.run(|| {
                let start = Instant::now();
                let mut stream = TcpStream::connect("203.0.113.1:8000").expect("connected");
                stream.read_exact(&mut [0]).expect("received");
                start.elapsed()
            }));
        }
        server.join().expect("all were served");
        let start = Instant::now();
        let last = attachments.pop().expect("there are many");
        drop(attachments);
        last.detach();
        let detached_s = start.elapsed().as_secs_f64();
        [
            quantiles("attach_500_ms", attach_ms),
            quantiles("connect_500_ms", connect_ms),
            format!("\"detach_500_s\":{detached_s:.3}"),
        ]
        .join(",")
    }

    fn descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").expect("/proc is mounted").count()
    }

    fn resident_kb() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").expect("/proc is mounted");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    fn cycles(world: &World, network: &Network) -> String {
        const COUNT: usize = 1000;
        let count = || {
            (
                world.host.shell("ip -o link | wc -l; nft list ruleset | wc -l; wc -l < /proc/net/nf_conntrack"),
                descriptors(),
            )
        };
        let before = count();
        let before_kb = resident_kb();
        let mut cycle_ms = Vec::new();
        for _ in 0..COUNT {
            let namespace = Namespace::new();
            let start = Instant::now();
            network.attach(namespace.descriptor(), NetworkPolicy::all()).expect("attached").detach();
            cycle_ms.push(start.elapsed());
        }
        assert_eq!(before, count(), "links, rules, connections and descriptors after {COUNT} cycles");
        let grown_kb = resident_kb().saturating_sub(before_kb);
        format!("{},\"resident_growth_kb\":{grown_kb}", quantiles("attach_detach_ms", cycle_ms))
    }
}
