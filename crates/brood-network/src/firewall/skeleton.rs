//! The chains and sets that are there as long as the table is. See the picture in the parent module.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::FirewallConfiguration;
use super::expression::{Family, Rule, protocol, state};
use super::transaction::{Hook, SetKind, Transaction};
use crate::address::{Cidr, OUTSIDE_PREFIX_BITS_V4, OUTSIDE_PREFIX_BITS_V6};
use crate::policy::joined_ranges;

/// Map from interface to the sandbox's outside address.
pub(super) const OUTSIDE_V4: &str = "outside_v4";
pub(super) const OUTSIDE_V6: &str = "outside_v6";
/// Map from interface to the sandbox's policy chain.
pub(super) const POLICIES: &str = "policies";
/// Maps from interface to the sandbox's chains of limits, by direction.
pub(super) const LIMITS_SENT: &str = "limits_sent";
pub(super) const LIMITS_RECEIVED: &str = "limits_received";
/// Map from interface to the chain of the sandbox's groups.
pub(super) const GROUPS: &str = "groups";
/// Interfaces with the number of their connections.
pub(super) const COUNTED: &str = "counted";
/// Interfaces of sandboxes whose TLS and HTTP connections are looked into.
pub(super) const NAMED: &str = "named";
/// Sets of addresses that allowed names led to.
const PINNED_V4: &str = "pinned_v4";
const PINNED_V6: &str = "pinned_v6";
/// Sets of ranges that no sandbox ever reaches.
const NEVER_V4: &str = "never_v4";
const NEVER_V6: &str = "never_v6";
/// The chain that refuses a packet so that the program notices at once.
pub(super) const REFUSE: &str = "refuse";

/// The chain that keeps any one sandbox from filling the kernel's table of connections, which all share.
const COUNT: &str = "count";

/// Where packets that have nothing to do with sandboxes end, if forwarding was off before us. That these chains exist
/// also tells the successor of a crashed daemon what to switch off again.
pub(super) const OTHERS_V4: &str = "unforwarded_v4";
pub(super) const OTHERS_V6: &str = "unforwarded_v6";

/// Priorities of `linux/netfilter_ipv4.h`, and ours between them.
mod priority {
    /// Before connection tracking (-200), behind defragmentation (-400).
    pub(super) const EDGE_IN: i32 = -300;
    /// Behind connection tracking, before anybody's destination rewriting (-100).
    pub(super) const GUARD: i32 = -150;
    pub(super) const REDIRECT: i32 = -100;
    pub(super) const FILTER: i32 = 0;
    pub(super) const MASQUERADE: i32 = 100;
    /// Behind everybody's address rewriting.
    pub(super) const EDGE_OUT: i32 = 300;
}

/// IPv4 ranges that are never reachable: this network, loopback, link-local with its metadata services, multicast,
/// reserved and broadcast (RFC 6890).
const BUILT_IN_NEVER_V4: [(Ipv4Addr, u8); 5] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// IPv6 ranges that are never reachable: unspecified and loopback, IPv4 in disguise (mapped, compatible, NAT64, 6to4),
/// link-local, multicast, and the metadata address of one cloud.
const BUILT_IN_NEVER_V6: [(Ipv6Addr, u8); 7] = [
    (Ipv6Addr::UNSPECIFIED, 96),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96),
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8),
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), 128),
];

/// The ranges that no sandbox ever reaches, whatever its policy says.
pub(crate) fn never(configuration: &FirewallConfiguration) -> Vec<Cidr> {
    let v4 = BUILT_IN_NEVER_V4.map(|(address, bits)| Cidr::new(address.into(), bits));
    let v6 = BUILT_IN_NEVER_V6.map(|(address, bits)| Cidr::new(address.into(), bits));
    let plan = &configuration.plan;
    v4.into_iter()
        .chain(v6)
        .flatten()
        .chain([plan.inside_range_v4(), plan.outside_range_v4(), plan.inside_range_v6(), plan.outside_range_v6()])
        .chain(configuration.never.iter().copied())
        .collect()
}

/// The set in which addresses of a family are pinned.
pub(super) fn pinned_set(family: Family) -> &'static str {
    match family {
        Family::V4 => PINNED_V4,
        Family::V6 => PINNED_V6,
    }
}

/// The set of addresses that are open to single sandboxes against the rule.
pub(super) fn open_set(family: Family) -> &'static str {
    match family {
        Family::V4 => "open_v4",
        Family::V6 => "open_v6",
    }
}

/// Replaces whatever table of this name there is by an empty skeleton.
pub(super) fn write(change: &mut Transaction<'_>, configuration: &FirewallConfiguration) {
    // Adding what may exist already makes deleting it legal in both cases.
    change.add_table();
    change.delete_table();
    change.add_table();
    sets(change, configuration);
    change.add_chain(REFUSE);
    change.add_rule(REFUSE, &Rule::new().protocol(protocol::TCP).reset());
    change.add_rule(REFUSE, &Rule::new().prohibit());
    change.add_chain(COUNT);
    let over = Rule::new().state(state::NEW).over_connections_of_interface(COUNTED, configuration.connections_max);
    change.add_rule(COUNT, &over.jump(REFUSE));
    edge_in(change, configuration);
    guard(change, configuration);
    redirect(change, configuration);
    input(change, configuration);
    output(change, configuration);
    from_sandbox(change, configuration);
    forward(change, configuration);
    masquerade(change, configuration);
    edge_out(change, configuration);
}

fn sets(change: &mut Transaction<'_>, configuration: &FirewallConfiguration) {
    change.add_set(OUTSIDE_V4, SetKind::InterfaceToAddress(Family::V4));
    change.add_set(OUTSIDE_V6, SetKind::InterfaceToAddress(Family::V6));
    for map in [POLICIES, LIMITS_SENT, LIMITS_RECEIVED, GROUPS] {
        change.add_set(map, SetKind::InterfaceToChain);
    }
    change.add_set(NAMED, SetKind::Interfaces);
    change.add_set(COUNTED, SetKind::CountedInterfaces);
    change.add_set(PINNED_V4, SetKind::TimedInterfaceAndAddress(Family::V4));
    change.add_set(PINNED_V6, SetKind::TimedInterfaceAndAddress(Family::V6));
    for family in Family::BOTH {
        change.add_set(open_set(family), SetKind::InterfaceAndAddress(family));
    }
    let never = never(configuration).into_iter().map(Into::into).collect();
    for (set, family) in [(NEVER_V4, Family::V4), (NEVER_V6, Family::V6)] {
        change.add_set(set, SetKind::Ranges(family));
        let ranges = joined_ranges(&never, |range| Family::of(range.network()) == family);
        change.add_ranges(set, &ranges);
    }
}

fn edge_in(change: &mut Transaction<'_>, configuration: &FirewallConfiguration) {
    const CHAIN: &str = "edge_in";
    const ENTER: &str = "enter";
    let plan = &configuration.plan;
    change.add_chain(ENTER);
    let rules = [
        Rule::new()
            .family(Family::V4)
            .source_is(plan.inside_v4.into())
            .rewrite_source_by_interface(Family::V4, OUTSIDE_V4)
            .accept(),
        Rule::new()
            .family(Family::V6)
            .source_is(plan.inside_v6.into())
            .rewrite_source_by_interface(Family::V6, OUTSIDE_V6)
            .accept(),
        Rule::new().drop(),
    ];
    for rule in rules {
        change.add_rule(ENTER, &rule);
    }
    change.add_base_chain(CHAIN, "filter", Hook::Prerouting, priority::EDGE_IN);
    change.add_rule(CHAIN, &Rule::new().entering_by(configuration.group.doomed()).drop());
    change.add_rule(CHAIN, &Rule::new().entering_by(configuration.group.living()).jump(ENTER));
    // Nobody else uses the sandboxes' addresses, neither to reach them nor to pose as one of them.
    for (family, leading) in outside_ranges(configuration) {
        let from = Rule::new().family(family).source_begins(family, &leading);
        change.add_rule(CHAIN, &from.drop());
        let to = Rule::new().family(family).destination_begins(family, &leading);
        change.add_rule(CHAIN, &to.drop());
    }
}

/// The outside ranges as leading bytes of an address.
fn outside_ranges(configuration: &FirewallConfiguration) -> [(Family, Vec<u8>); 2] {
    const BYTES_V4: usize = OUTSIDE_PREFIX_BITS_V4 as usize / 8;
    const BYTES_V6: usize = OUTSIDE_PREFIX_BITS_V6 as usize / 8;
    let plan = &configuration.plan;
    [
        (Family::V4, plan.outside_v4.octets()[..BYTES_V4].to_vec()),
        (Family::V6, plan.outside_v6.octets()[..BYTES_V6].to_vec()),
    ]
}

fn gateways(configuration: &FirewallConfiguration) -> [(Family, IpAddr); 2] {
    let plan = &configuration.plan;
    [(Family::V4, plan.gateway_v4.into()), (Family::V6, plan.gateway_v6.into())]
}

/// A packet to an address that is open to its sandbox against the rule.
fn opened(family: Family) -> Rule {
    Rule::new().family(family).interface_and_destination_in(family, open_set(family))
}

/// Refuses the host's own addresses before another table may send such a packet elsewhere (published container ports,
/// for example, are such addresses).
fn guard(change: &mut Transaction<'_>, configuration: &FirewallConfiguration) {
    const CHAIN: &str = "guard";
    change.add_base_chain(CHAIN, "filter", Hook::Prerouting, priority::GUARD);
    for family in Family::BOTH {
        change.add_rule(CHAIN, &opened(family).accept());
    }
    for (family, gateway) in gateways(configuration) {
        let rule = Rule::new()
            .entering_by(configuration.group.living())
            .family(family)
            .destination_is_not(gateway)
            .destination_is_local()
            .jump(REFUSE);
        change.add_rule(CHAIN, &rule);
    }
}

fn redirect(change: &mut Transaction<'_>, configuration: &FirewallConfiguration) {
    const CHAIN: &str = "redirect";
    const NAME_SERVER: u16 = 53;
    const LOOKED_INTO: [u16; 2] = [80, 443];
    change.add_base_chain(CHAIN, "nat", Hook::Prerouting, priority::REDIRECT);
    for (family, gateway) in gateways(configuration) {
        for number in [protocol::UDP, protocol::TCP] {
            let rule = Rule::new()
                .entering_by(configuration.group.living())
                .family(family)
                .destination_is(gateway)
                .protocol(number)
                .destination_port(NAME_SERVER)
                .redirect_to(gateway, configuration.name_server_port);
            change.add_rule(CHAIN, &rule);
        }
        let to_gateway = Rule::new().entering_by(configuration.group.living()).family(family).destination_is(gateway);
        change.add_rule(CHAIN, &to_gateway.accept());
    }
    for (family, leading) in outside_ranges(configuration) {
        let between =
            Rule::new().entering_by(configuration.group.living()).family(family).destination_begins(family, &leading);
        change.add_rule(CHAIN, &between.accept());
    }
    for family in Family::BOTH {
        change.add_rule(CHAIN, &opened(family).accept());
    }
    for (family, gateway) in gateways(configuration) {
        for port in LOOKED_INTO {
            let rule = Rule::new()
                .incoming_in(NAMED)
                .family(family)
                .protocol(protocol::TCP)
                .destination_port(port)
                .redirect_to(gateway, configuration.proxy_port);
            change.add_rule(CHAIN, &rule);
        }
    }
}

fn input(change: &mut Transaction<'_>, configuration: &FirewallConfiguration) {
    const CHAIN: &str = "input";
    change.add_base_chain(CHAIN, "filter", Hook::Input, priority::FILTER);
    change.add_rule(CHAIN, &Rule::new().entering_by(configuration.group.living()).jump(COUNT));
    change.add_rule(CHAIN, &Rule::new().jump_by_incoming(LIMITS_SENT));
    for family in Family::BOTH {
        change.add_rule(CHAIN, &opened(family).accept());
    }
    for (family, gateway) in gateways(configuration) {
        let services = [
            (protocol::UDP, configuration.name_server_port),
            (protocol::TCP, configuration.name_server_port),
            (protocol::TCP, configuration.proxy_port),
        ];
        for (number, port) in services {
            // Only what was redirected: the ports themselves are not for sandboxes to find.
            let rule = Rule::new()
                .entering_by(configuration.group.living())
                .family(family)
                .destination_is(gateway)
                .protocol(number)
                .destination_port(port)
                .destination_was_rewritten()
                .accept();
            change.add_rule(CHAIN, &rule);
        }
        let elsewhere = Rule::new()
            .not_entering_by(configuration.group.living())
            .not_entering_by_loopback()
            .family(family)
            .destination_is(gateway);
        change.add_rule(CHAIN, &elsewhere.drop());
    }
    change.add_rule(CHAIN, &Rule::new().entering_by(configuration.group.living()).jump(REFUSE));
}

/// The host answers sandboxes, and sends them ICMP errors; it does not connect to them.
fn output(change: &mut Transaction<'_>, configuration: &FirewallConfiguration) {
    const CHAIN: &str = "output";
    change.add_base_chain(CHAIN, "filter", Hook::Output, priority::FILTER);
    change.add_rule(CHAIN, &Rule::new().jump_by_outgoing(LIMITS_RECEIVED));
    let to_sandbox = || Rule::new().leaving_by(configuration.group.living());
    let rules = [
        to_sandbox().state(state::ESTABLISHED | state::RELATED).accept(),
        to_sandbox().protocol(protocol::ICMP).accept(),
        to_sandbox().protocol(protocol::ICMP_V6).accept(),
        to_sandbox().drop(),
    ];
    for rule in rules {
        change.add_rule(CHAIN, &rule);
    }
}

const FROM_SANDBOX: &str = "from_sandbox";
const TO_SANDBOX: &str = "to_sandbox";

fn from_sandbox(change: &mut Transaction<'_>, configuration: &FirewallConfiguration) {
    const BETWEEN: &str = "between";
    change.add_chain(BETWEEN);
    for rule in
        [Rule::new().jump_by_outgoing(LIMITS_RECEIVED), Rule::new().jump_by_incoming(GROUPS), Rule::new().jump(REFUSE)]
    {
        change.add_rule(BETWEEN, &rule);
    }
    change.add_chain(FROM_SANDBOX);
    let rules = [
        // An invalid packet is not tracked, so it would leave with an address that means nothing outside.
        Rule::new().state(state::INVALID).drop(),
        Rule::new().jump(COUNT),
        Rule::new().jump_by_incoming(LIMITS_SENT),
        Rule::new().leaving_by(configuration.group.living()).jump(BETWEEN),
        opened(Family::V4).accept(),
        opened(Family::V6).accept(),
        Rule::new().family(Family::V4).destination_in(Family::V4, NEVER_V4).jump(REFUSE),
        Rule::new().family(Family::V6).destination_in(Family::V6, NEVER_V6).jump(REFUSE),
        Rule::new().jump_by_incoming(POLICIES),
        Rule::new().jump(REFUSE),
    ];
    for rule in rules {
        change.add_rule(FROM_SANDBOX, &rule);
    }
    change.add_chain(TO_SANDBOX);
    for rule in [
        Rule::new().jump_by_outgoing(LIMITS_RECEIVED),
        Rule::new().state(state::ESTABLISHED | state::RELATED).accept(),
        Rule::new().drop(),
    ] {
        change.add_rule(TO_SANDBOX, &rule);
    }
}

fn forward(change: &mut Transaction<'_>, configuration: &FirewallConfiguration) {
    const CHAIN: &str = "forward";
    change.add_base_chain(CHAIN, "filter", Hook::Forward, priority::FILTER);
    for (rule, chain) in [
        (Rule::new().entering_by(configuration.group.living()), FROM_SANDBOX),
        (Rule::new().leaving_by(configuration.group.living()), TO_SANDBOX),
    ] {
        change.add_rule(CHAIN, &rule.jump(chain));
    }
    let switched_on = configuration.switched_on;
    for (family, is_switched_on, chain) in
        [(Family::V4, switched_on.forwarding_v4, OTHERS_V4), (Family::V6, switched_on.forwarding_v6, OTHERS_V6)]
    {
        if is_switched_on {
            change.add_chain(chain);
            change.add_rule(chain, &Rule::new().drop());
            change.add_rule(CHAIN, &Rule::new().family(family).jump(chain));
        }
    }
}

fn masquerade(change: &mut Transaction<'_>, configuration: &FirewallConfiguration) {
    const CHAIN: &str = "masquerade";
    change.add_base_chain(CHAIN, "nat", Hook::Postrouting, priority::MASQUERADE);
    for (family, leading) in outside_ranges(configuration) {
        let rule = Rule::new()
            .family(family)
            .source_begins(family, &leading)
            .not_leaving_by(configuration.group.living())
            .masquerade();
        change.add_rule(CHAIN, &rule);
    }
}

fn edge_out(change: &mut Transaction<'_>, configuration: &FirewallConfiguration) {
    const CHAIN: &str = "edge_out";
    /// Destination unreachable, time exceeded, parameter problem: the ICMP errors that quote a packet.
    const ERRORS_V4: [u8; 3] = [3, 11, 12];
    /// ICMPv6 errors have the types 1 to 4.
    const ERROR_LAST_V6: u8 = 4;
    let plan = &configuration.plan;
    let (inside_v4, inside_v6) = (plan.inside_v4.into(), plan.inside_v6.into());
    change.add_base_chain(CHAIN, "filter", Hook::Postrouting, priority::EDGE_OUT);
    change.add_rule(CHAIN, &Rule::new().leaving_by(configuration.group.doomed()).drop());
    let to_sandbox = |family| Rule::new().leaving_by(configuration.group.living()).family(family);
    for kind in ERRORS_V4 {
        let rule = to_sandbox(Family::V4).protocol(protocol::ICMP).icmp_type(kind).rewrite_quoted_source_v4(inside_v4);
        change.add_rule(CHAIN, &rule);
    }
    let rule = to_sandbox(Family::V6)
        .protocol(protocol::ICMP_V6)
        .icmp_type_at_most(ERROR_LAST_V6)
        .rewrite_quoted_source_v6(inside_v6);
    change.add_rule(CHAIN, &rule);
    for (family, inside) in [(Family::V4, inside_v4), (Family::V6, inside_v6)] {
        change.add_rule(CHAIN, &to_sandbox(family).rewrite_destination(inside));
    }
}
