//! Changes to the packet filter: all of a transaction or none of it.

use std::net::IpAddr;

use netlink_bindings::nftables::{
    Nfgenmsg, OpGetchainDump, PushSetelemAttrs, Request, SetElemFlags, SetFlags, VerdictCode,
};
use netlink_bindings::traits::{NetlinkRequest, Pusher};
use netlink_bindings::utils::{finalize_nested_header, push_nested_header};

use super::expression::{Family, Rule, octets};
use crate::netlink::batch::Batch;
use crate::netlink::link::InterfaceIndex;

/// `NFPROTO_INET`: the table sees IPv4 and IPv6.
const FAMILY_INET: u8 = 1;
/// `NFNL_SUBSYS_NFTABLES`, which a batch names in its envelope.
const SUBSYSTEM_NFTABLES: u16 = 10;
/// `NFT_DATA_VERDICT`: the map's values are chains to go on in.
const DATA_VERDICT: u32 = 0xffff_ff00;
/// `NFTA_LIST_ELEM`.
const ELEMENT: u16 = 1;
/// Elements in one message: a nested attribute holds at most 64 KiB, and an element takes up to 60 bytes.
const ELEMENTS_PER_MESSAGE: usize = 512;

/// How `nft list` shows a value; the kernel itself only looks at lengths.
mod shown_as {
    pub(super) const IPV4_ADDRESS: u32 = 7;
    pub(super) const IPV6_ADDRESS: u32 = 8;
    pub(super) const INTERFACE: u32 = 20;
    /// Two types side by side.
    pub(super) const fn both(first: u32, second: u32) -> u32 {
        first << 6 | second
    }
}

/// Where a base chain is attached: hook numbers of `linux/netfilter.h`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Hook {
    Prerouting = 0,
    Input = 1,
    Forward = 2,
    Output = 3,
    Postrouting = 4,
}

/// What a set holds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SetKind {
    /// Interface numbers.
    Interfaces,
    /// Interface numbers, each with a counter, made by packets.
    CountedInterfaces,
    /// From interface number to an address.
    InterfaceToAddress(Family),
    /// From interface number to the chain to go on in.
    InterfaceToChain,
    /// Ranges of addresses.
    Ranges(Family),
    /// (interface, address).
    InterfaceAndAddress(Family),
    /// (interface, address), each for a limited time.
    TimedInterfaceAndAddress(Family),
}

/// A transaction under construction, on one table.
#[derive(Debug)]
pub(crate) struct Transaction<'a> {
    table: &'a str,
    batch: Batch,
    sets: u32,
}

impl<'a> Transaction<'a> {
    pub(crate) fn new(table: &'a str) -> Self {
        let mut batch = Batch::new();
        let mut envelope = Nfgenmsg::new();
        envelope.set_res_id(SUBSYSTEM_NFTABLES);
        batch.push("begin a packet filter transaction", &Request::new().op_batch_begin_do(&envelope));
        Self { table, batch, sets: 0 }
    }

    /// Whether nothing was put into it.
    pub(crate) fn is_empty(&self) -> bool {
        self.batch.len() == 1
    }

    /// Closes the transaction: it can be sent.
    pub(crate) fn finish(mut self) -> Batch {
        self.batch.acknowledge_last();
        let mut envelope = Nfgenmsg::new();
        envelope.set_res_id(SUBSYSTEM_NFTABLES);
        self.batch.push("end a packet filter transaction", &Request::new().op_batch_end_do(&envelope));
        self.batch
    }

    pub(crate) fn add_table(&mut self) {
        let mut request = Request::new().set_create().op_newtable_do(&inet());
        request.encode().push_name_bytes(self.table.as_bytes());
        self.batch.push("create the packet filter table", &request);
    }

    pub(crate) fn delete_table(&mut self) {
        let mut request = Request::new().op_deltable_do(&inet());
        request.encode().push_name_bytes(self.table.as_bytes());
        self.batch.push("delete the packet filter table", &request);
    }

    /// A chain that packets reach only from other chains.
    pub(crate) fn add_chain(&mut self, name: &str) {
        let mut request = Request::new().set_create().op_newchain_do(&inet());
        request.encode().push_table_bytes(self.table.as_bytes()).push_name_bytes(name.as_bytes());
        self.batch.push("create a chain", &request);
    }

    /// A chain that the kernel runs itself; packets that reach its end go on.
    pub(crate) fn add_base_chain(&mut self, name: &str, kind: &str, hook: Hook, priority: i32) {
        let mut request = Request::new().set_create().op_newchain_do(&inet());
        request
            .encode()
            .push_table_bytes(self.table.as_bytes())
            .push_name_bytes(name.as_bytes())
            .push_type_bytes(kind.as_bytes())
            .push_policy(VerdictCode::Accept as u32)
            .nested_hook()
            .push_num(hook as u32)
            .push_priority(priority);
        self.batch.push("create a base chain", &request);
    }

    /// Deletes a chain that nothing jumps to any more, with its rules.
    pub(crate) fn delete_chain(&mut self, name: &str) {
        let mut rules = Request::new().op_delrule_do(&inet());
        rules.encode().push_table_bytes(self.table.as_bytes()).push_chain_bytes(name.as_bytes());
        self.batch.push("delete the rules of a chain", &rules);
        let mut request = Request::new().op_delchain_do(&inet());
        request.encode().push_table_bytes(self.table.as_bytes()).push_name_bytes(name.as_bytes());
        self.batch.push("delete a chain", &request);
    }

    /// Appends a rule.
    pub(crate) fn add_rule(&mut self, chain: &str, rule: &Rule) {
        let mut request = Request::new().set_create().set_append().op_newrule_do(&inet());
        request
            .encode()
            .push_table_bytes(self.table.as_bytes())
            .push_chain_bytes(chain.as_bytes())
            .nested_expressions()
            .as_vec_mut()
            .extend_from_slice(rule.encoded());
        self.batch.push("add a rule", &request);
    }

    pub(crate) fn add_set(&mut self, name: &str, kind: SetKind) {
        self.sets += 1;
        let mut request = Request::new().set_create().op_newset_do(&inet());
        let set = request
            .encode()
            .push_table_bytes(self.table.as_bytes())
            .push_name_bytes(name.as_bytes())
            .push_id(self.sets);
        let address = |family| match family {
            Family::V4 => (shown_as::IPV4_ADDRESS, 4),
            Family::V6 => (shown_as::IPV6_ADDRESS, 16),
        };
        match kind {
            SetKind::Interfaces => {
                set.push_key_type(shown_as::INTERFACE).push_key_len(4);
            }
            SetKind::CountedInterfaces => {
                set.push_flags(SetFlags::Eval as u32).push_key_type(shown_as::INTERFACE).push_key_len(4);
            }
            SetKind::InterfaceToAddress(family) => {
                let (shown, length) = address(family);
                set.push_flags(SetFlags::Map as u32)
                    .push_key_type(shown_as::INTERFACE)
                    .push_key_len(4)
                    .push_data_type(shown)
                    .push_data_len(length);
            }
            SetKind::InterfaceToChain => {
                set.push_flags(SetFlags::Map as u32)
                    .push_key_type(shown_as::INTERFACE)
                    .push_key_len(4)
                    .push_data_type(DATA_VERDICT);
            }
            SetKind::Ranges(family) => {
                let (shown, length) = address(family);
                set.push_flags(SetFlags::Interval as u32).push_key_type(shown).push_key_len(length);
            }
            SetKind::InterfaceAndAddress(family) => {
                let (shown, length) = address(family);
                set.push_key_type(shown_as::both(shown_as::INTERFACE, shown)).push_key_len(4 + length);
            }
            SetKind::TimedInterfaceAndAddress(family) => {
                let (shown, length) = address(family);
                set.push_flags(SetFlags::Timeout as u32)
                    .push_key_type(shown_as::both(shown_as::INTERFACE, shown))
                    .push_key_len(4 + length);
            }
        }
        self.batch.push("create a set", &request);
    }

    pub(crate) fn delete_set(&mut self, name: &str) {
        let mut request = Request::new().op_delset_do(&inet());
        request.encode().push_table_bytes(self.table.as_bytes()).push_name_bytes(name.as_bytes());
        self.batch.push("delete a set", &request);
    }

    pub(crate) fn add_interface(&mut self, set: &str, interface: InterfaceIndex) {
        self.add_element(set, |element| {
            element.nested_key().push_value(&interface.0.to_ne_bytes());
        });
    }

    pub(crate) fn map_to_address(&mut self, map: &str, interface: InterfaceIndex, to: IpAddr) {
        self.add_element(map, |element| {
            element
                .nested_key()
                .push_value(&interface.0.to_ne_bytes())
                .end_nested()
                .nested_data()
                .push_value(&octets(to));
        });
    }

    pub(crate) fn map_to_chain(&mut self, map: &str, interface: InterfaceIndex, chain: &str) {
        self.add_element(map, |element| {
            element
                .nested_key()
                .push_value(&interface.0.to_ne_bytes())
                .end_nested()
                .nested_data()
                .nested_verdict()
                .push_code(VerdictCode::Jump as u32)
                .push_chain_bytes(chain.as_bytes());
        });
    }

    pub(crate) fn add_interface_and_address(&mut self, set: &str, interface: InterfaceIndex, address: IpAddr) {
        self.add_element(set, |element| {
            element.nested_key().push_value(&interface_and_address(interface, address));
        });
    }

    /// Remembers (`interface`, `address`) for `timeout_ms` milliseconds, from now on.
    pub(crate) fn add_timed(&mut self, set: &str, interface: InterfaceIndex, address: IpAddr, timeout_ms: u64) {
        self.delete_interface_and_address(set, interface, address);
        self.add_element(set, |element| {
            // The kernel reads it in network byte order, the bindings write it in the processor's.
            element
                .push_timeout(timeout_ms.to_be())
                .nested_key()
                .push_value(&interface_and_address(interface, address));
        });
    }

    /// Forgets (`interface`, `address`), if it has not expired yet.
    pub(crate) fn delete_interface_and_address(&mut self, set: &str, interface: InterfaceIndex, address: IpAddr) {
        self.delete_element(set, &interface_and_address(interface, address));
    }

    /// Adds ranges, which must be sorted and neither overlap nor touch.
    pub(crate) fn add_ranges(&mut self, set: &str, ranges: &[(IpAddr, IpAddr)]) {
        for part in ranges.chunks(ELEMENTS_PER_MESSAGE / 2) {
            let mut request = Request::new().set_create().op_newsetelem_do(&inet());
            {
                let mut elements = request
                    .encode()
                    .push_table_bytes(self.table.as_bytes())
                    .push_set_bytes(set.as_bytes())
                    .nested_elements();
                for (first, last) in part {
                    elements =
                        elements.nested_elem().nested_key().push_value(&octets(*first)).end_nested().end_nested();
                    // A range that reaches the highest address has no end.
                    if let Some(end) = successor(*last) {
                        let flags = (SetElemFlags::IntervalEnd as u32).to_be_bytes();
                        elements = elements
                            .nested_elem()
                            .push_flags(&flags)
                            .nested_key()
                            .push_value(&octets(end))
                            .end_nested()
                            .end_nested();
                    }
                }
            }
            self.batch.push("add ranges to a set", &request);
        }
    }

    pub(crate) fn delete_interface(&mut self, set: &str, interface: InterfaceIndex) {
        self.delete_element(set, &interface.0.to_ne_bytes());
    }

    fn add_element(&mut self, set: &str, fill: impl FnOnce(PushSetelemAttrs<&mut Vec<u8>>)) {
        let mut request = Request::new().set_create().op_newsetelem_do(&inet());
        {
            let mut elements = request
                .encode()
                .push_table_bytes(self.table.as_bytes())
                .push_set_bytes(set.as_bytes())
                .nested_elements();
            let buffer = elements.as_vec_mut();
            let element = push_nested_header(buffer, ELEMENT);
            fill(PushSetelemAttrs::new(&mut *buffer));
            finalize_nested_header(buffer, element);
        }
        self.batch.push("add an element to a set", &request);
    }

    fn delete_element(&mut self, set: &str, key: &[u8]) {
        let mut request = Request::new().op_destroysetelem_do(&inet());
        request
            .encode()
            .push_table_bytes(self.table.as_bytes())
            .push_set_bytes(set.as_bytes())
            .nested_elements()
            .nested_elem()
            .nested_key()
            .push_value(key);
        self.batch.push("delete an element of a set", &request);
    }
}

/// Asks for a chain: the answer is an error if there is none.
pub(super) fn get_chain(batch: &mut Batch, table: &str, chain: &str) {
    let mut request = Request::new().op_getchain_do(&inet());
    request.encode().push_table_bytes(table.as_bytes()).push_name_bytes(chain.as_bytes());
    batch.push("look for a chain", &request);
    batch.acknowledge_last();
}

/// Asks for the chains of all tables.
pub(super) fn list_chains() -> (&'static str, OpGetchainDump<'static>) {
    ("list the chains of the packet filter", Request::new().op_getchain_dump(&Nfgenmsg::new()))
}

/// The table and the name of a chain in an answer to [`list_chains`], if it is run at `hook` for IP packets and drops what
/// it does not accept.
pub(super) fn dropping_chain(payload: &[u8], hook: Hook) -> Option<(String, String)> {
    /// `NFPROTO_INET`, `NFPROTO_IPV4`, `NFPROTO_IPV6`.
    const FAMILIES: [u8; 3] = [1, 2, 10];
    let (header, attributes) = <OpGetchainDump<'_> as NetlinkRequest>::decode_reply(payload);
    let number = attributes.get_hook().ok()?.get_num().ok()?;
    let is_dropping = attributes.get_policy().is_ok_and(|policy| policy == VerdictCode::Drop as u32);
    if !FAMILIES.contains(&header.nfgen_family) || number != hook as u32 || !is_dropping {
        return None;
    }
    let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
    Some((text(attributes.get_table().ok()?), text(attributes.get_name().ok()?)))
}

fn inet() -> Nfgenmsg {
    let mut header = Nfgenmsg::new();
    header.nfgen_family = FAMILY_INET;
    header
}

/// A key of two fields side by side, as [`Rule::interface_and_destination_in`] looks it up.
fn interface_and_address(interface: InterfaceIndex, address: IpAddr) -> Vec<u8> {
    let mut key = interface.0.to_ne_bytes().to_vec();
    key.extend(octets(address));
    key
}

/// The address after `address`, if there is one.
fn successor(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => {
            let next = address.to_bits().checked_add(1)?;
            Some(std::net::Ipv4Addr::from_bits(next).into())
        }
        IpAddr::V6(address) => {
            let next = address.to_bits().checked_add(1)?;
            Some(std::net::Ipv6Addr::from_bits(next).into())
        }
    }
}
