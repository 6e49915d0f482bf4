//! DNS messages (RFC 1035): only as much as a forwarder must understand, and all of it from hostile hands.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Length of the fixed header.
const HEADER_BYTES: usize = 12;
/// Longest name in wire form, its final zero included.
const NAME_WIRE_BYTES_MAX: usize = 255;
/// Most compression pointers followed in one name: each must point backwards, so real names need one or two.
const POINTERS_MAX: usize = 16;
/// Most records looked at in an answer.
const RECORDS_MAX: usize = 256;

/// Record types and the one class.
pub(crate) mod kind {
    pub(crate) const A: u16 = 1;
    pub(crate) const CNAME: u16 = 5;
    pub(crate) const AAAA: u16 = 28;
    pub(crate) const SVCB: u16 = 64;
    pub(crate) const HTTPS: u16 = 65;
    pub(crate) const IN: u16 = 1;
}

/// Response codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseCode {
    NoError = 0,
    ServerFailure = 2,
    NoSuchName = 3,
}

/// A message that breaks the rules.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum MessageError {
    #[error("the message ends too early")]
    Truncated,
    #[error("the message is not a query with one question")]
    NotOneQuestion,
    #[error("a name is malformed")]
    Name,
}

/// The question of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) id: u16,
    /// Lower case, without a final dot; bytes that no host name has appear escaped as `\123`.
    pub(crate) name: String,
    pub(crate) kind: u16,
    pub(crate) class: u16,
    /// Where in the message the question ends.
    end: usize,
}

impl Question {
    /// Reads a query.
    pub(crate) fn of_query(message: &[u8]) -> Result<Self, MessageError> {
        let flags = u16_at(message, 2)?;
        let is_plain_query = flags & 0xf800 == 0;
        if !is_plain_query {
            return Err(MessageError::NotOneQuestion);
        }
        Self::parse(message)
    }

    /// Reads the question that an answer repeats.
    pub(crate) fn of_answer(message: &[u8]) -> Result<Self, MessageError> {
        let flags = u16_at(message, 2)?;
        if flags & 0x8000 == 0 {
            return Err(MessageError::NotOneQuestion);
        }
        Self::parse(message)
    }

    fn parse(message: &[u8]) -> Result<Self, MessageError> {
        let id = u16_at(message, 0)?;
        if u16_at(message, 4)? != 1 {
            return Err(MessageError::NotOneQuestion);
        }
        let (name, after) = name_at(message, HEADER_BYTES)?;
        Ok(Self { id, name, kind: u16_at(message, after)?, class: u16_at(message, after + 2)?, end: after + 4 })
    }

    /// Whether `answer` is about the same name, type and class.
    pub(crate) fn is_same(&self, answer: &Self) -> bool {
        self.name == answer.name && self.kind == answer.kind && self.class == answer.class
    }

    /// An answer to `query` (of which `self` is the question) without upstream: `addresses` of the asked kind.
    pub(crate) fn answer(&self, query: &[u8], code: ResponseCode, addresses: &[IpAddr], ttl_s: u32) -> Vec<u8> {
        const RESPONSE: u16 = 0x8000;
        const RECURSION_DESIRED: u16 = 0x0100;
        const RECURSION_AVAILABLE: u16 = 0x0080;
        let asked = u16_at(query, 2).unwrap_or(0) & RECURSION_DESIRED;
        let flags = RESPONSE | asked | RECURSION_AVAILABLE | code as u16;
        let of_kind = |address: &&IpAddr| match self.kind {
            kind::A => address.is_ipv4(),
            kind::AAAA => address.is_ipv6(),
            _ => false,
        };
        let records: Vec<&IpAddr> = addresses.iter().filter(of_kind).take(RECORDS_MAX).collect();
        let count = u16::try_from(records.len()).expect("at most RECORDS_MAX");
        let mut message = Vec::with_capacity(512);
        for field in [self.id, flags, 1, count, 0, 0] {
            message.extend(field.to_be_bytes());
        }
        message.extend_from_slice(query.get(HEADER_BYTES..self.end).unwrap_or_default());
        for address in records {
            // A pointer to the question's name, which stands right behind the header.
            message.extend([0xc0, 12]);
            message.extend(self.kind.to_be_bytes());
            message.extend(kind::IN.to_be_bytes());
            message.extend(ttl_s.to_be_bytes());
            let octets = crate::firewall::octets(*address);
            message.extend(u16::try_from(octets.len()).expect("4 or 16").to_be_bytes());
            message.extend(octets);
        }
        message
    }
}

/// Replaces the number of a message.
pub(crate) fn set_id(message: &mut [u8], id: u16) {
    if let Some(field) = message.first_chunk_mut::<2>() {
        *field = id.to_be_bytes();
    }
}

/// One address in an answer, and for how long it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AddressRecord {
    pub(crate) address: IpAddr,
    pub(crate) ttl_s: u32,
}

/// The addresses that `answer` gives for the name asked, followed through its aliases. Records about other names are
/// not looked at: they are no answer.
pub(crate) fn addresses(answer: &[u8], question: &Question) -> Result<Vec<AddressRecord>, MessageError> {
    let count = usize::from(u16_at(answer, 6)?).min(RECORDS_MAX);
    let mut wanted = vec![question.name.clone()];
    let mut found = Vec::new();
    let mut at = question.end;
    for _ in 0..count {
        let (owner, after) = name_at(answer, at)?;
        let record_kind = u16_at(answer, after)?;
        let class = u16_at(answer, after + 2)?;
        let ttl_s = u32_at(answer, after + 4)?;
        let length = usize::from(u16_at(answer, after + 8)?);
        let start = after + 10;
        let data = answer.get(start..start + length).ok_or(MessageError::Truncated)?;
        at = start + length;
        if class != kind::IN || !wanted.contains(&owner) {
            continue;
        }
        match record_kind {
            kind::A => {
                let octets: [u8; 4] = data.try_into().map_err(|_| MessageError::Truncated)?;
                let address = Ipv4Addr::from(octets).into();
                found.push(AddressRecord { address, ttl_s });
            }
            kind::AAAA => {
                let octets: [u8; 16] = data.try_into().map_err(|_| MessageError::Truncated)?;
                let address = Ipv6Addr::from(octets).into();
                found.push(AddressRecord { address, ttl_s });
            }
            kind::CNAME => wanted.push(name_at(answer, start)?.0),
            _ => {}
        }
    }
    Ok(found)
}

/// The name at `at`, and where the message goes on behind it.
fn name_at(message: &[u8], mut at: usize) -> Result<(String, usize), MessageError> {
    let mut name = String::new();
    let mut wire_bytes = 1;
    let mut after = None;
    let mut pointers = 0;
    loop {
        let length = usize::from(*message.get(at).ok_or(MessageError::Truncated)?);
        match length {
            0 => return Ok((name, after.unwrap_or(at + 1))),
            1..=63 => {
                wire_bytes += length + 1;
                if wire_bytes > NAME_WIRE_BYTES_MAX {
                    return Err(MessageError::Name);
                }
                let label = message.get(at + 1..at + 1 + length).ok_or(MessageError::Truncated)?;
                if !name.is_empty() {
                    name.push('.');
                }
                push_label(&mut name, label);
                at += 1 + length;
            }
            0xc0..=0xff => {
                let target = usize::from(u16_at(message, at)? & 0x3fff);
                pointers += 1;
                if target >= at || pointers > POINTERS_MAX {
                    return Err(MessageError::Name);
                }
                after.get_or_insert(at + 2);
                at = target;
            }
            _ => return Err(MessageError::Name),
        }
    }
}

/// A label may hold any bytes; only those of host names stand for themselves, so that no name looks like another one.
fn push_label(name: &mut String, label: &[u8]) {
    for byte in label {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
            name.push(char::from(byte.to_ascii_lowercase()));
        } else {
            name.push_str(&format!("\\{byte:03}"));
        }
    }
}

fn u16_at(message: &[u8], at: usize) -> Result<u16, MessageError> {
    let bytes = message.get(at..at + 2).ok_or(MessageError::Truncated)?;
    Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
}

fn u32_at(message: &[u8], at: usize) -> Result<u32, MessageError> {
    let high = u32::from(u16_at(message, at)?);
    let low = u32::from(u16_at(message, at + 2)?);
    Ok(high << 16 | low)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(name: &str, record_kind: u16) -> Vec<u8> {
        let mut message = vec![0x12, 0x34, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            message.push(u8::try_from(label.len()).unwrap());
            message.extend(label.as_bytes());
        }
        message.push(0);
        message.extend(record_kind.to_be_bytes());
        message.extend(kind::IN.to_be_bytes());
        message
    }

    #[test]
    fn queries_are_read() {
        let question = Question::of_query(&query("WWW.Example.com", kind::A)).unwrap();
        assert_eq!(question.name, "www.example.com");
        assert_eq!((question.id, question.kind), (0x1234, kind::A));
    }

    #[test]
    fn own_answers_are_read_back() {
        let query = query("example.com", kind::A);
        let question = Question::of_query(&query).unwrap();
        let all: [IpAddr; 2] = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        let answer = question.answer(&query, ResponseCode::NoError, &all, 60);
        let repeated = Question::of_answer(&answer).unwrap();
        assert!(question.is_same(&repeated));
        let found = addresses(&answer, &repeated).unwrap();
        assert_eq!(found, [AddressRecord { address: all[0], ttl_s: 60 }]);
    }

    #[test]
    fn records_of_other_names_are_no_answer() {
        let query = query("a.com", kind::A);
        let question = Question::of_query(&query).unwrap();
        let mut answer = question.answer(&query, ResponseCode::NoError, &[], 60);
        answer[7] = 1;
        answer.extend(b"\x01b\x03com\x00");
        answer.extend([0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 9]);
        assert_eq!(addresses(&answer, &question).unwrap(), []);
    }

    #[test]
    fn aliases_are_followed() {
        let query = query("a.com", kind::A);
        let question = Question::of_query(&query).unwrap();
        let mut answer = question.answer(&query, ResponseCode::NoError, &[], 60);
        answer[7] = 2;
        answer.extend(b"\xc0\x0c\x00\x05\x00\x01\x00\x00\x00\x3c\x00\x07\x01b\x03net\x00");
        answer.extend(b"\x01b\x03net\x00");
        answer.extend([0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 9]);
        let found = addresses(&answer, &question).unwrap();
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn hostile_names_are_refused() {
        let header = [0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        let with = |rest: &[u8]| [&header[..], rest].concat();
        // A pointer to itself, one forward, a reserved label type, an endless label.
        for rest in [&b"\xc0\x0c\0\x01\0\x01"[..], b"\xc0\x20\0\x01", b"\x40a\0", b"\x3fabc"] {
            assert!(Question::of_query(&with(rest)).is_err(), "{rest:?}");
        }
        let long: Vec<u8> = std::iter::repeat_n(*b"\x01a", 200).flatten().collect();
        assert_eq!(Question::of_query(&with(&long)), Err(MessageError::Name));
        assert_eq!(Question::of_query(&with(b"\x03a.b\0\0\x01\0\x01")).unwrap().name, "a\\046b");
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(0u8.., 0..600)) {
            if let Ok(question) = Question::of_answer(&bytes) {
                addresses(&bytes, &question).ok();
            }
            Question::of_query(&bytes).ok();
        }
    }
}
