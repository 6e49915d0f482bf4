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
    use std::time::{Duration, Instant};

    use brood_network::{Network, NetworkPolicy};
    use rustix::time::{ClockId, clock_gettime};

    use crate::world::{Namespace, World};

    pub fn all() -> String {
        let world = World::new();
        let network = world.start(World::configuration());
        let parts = [prepare(&network), cycles(&world, &network)];
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

    fn cycles(world: &World, network: &Network) -> String {
        const COUNT: usize = 1000;
        let before = world.host.shell("ip -o link | wc -l; nft list ruleset | wc -l; ls /proc/$PPID/fd | wc -l");
        let mut cycle_ms = Vec::new();
        for _ in 0..COUNT {
            let namespace = Namespace::new();
            let start = Instant::now();
            network.attach(namespace.descriptor(), NetworkPolicy::all()).expect("attached").detach();
            cycle_ms.push(start.elapsed());
        }
        let after = world.host.shell("ip -o link | wc -l; nft list ruleset | wc -l; ls /proc/$PPID/fd | wc -l");
        assert_eq!(before, after, "links, rules and descriptors after {COUNT} cycles");
        quantiles("attach_detach_ms", cycle_ms)
    }
}
