//! Displaced versions of an exchange file, and the names that they are kept under.
//!
//! Another program may have opened the old file before the exchange, and may write into it afterwards. The old file is therefore
//! kept for a while, under a name with the fingerprint of its content. Other bytes in it are an outside change that is not
//! merged yet, also after a crash.

use crate::stores::fs::FileStamp;

/// The parts of a displaced file's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DisplacedName {
    /// Increases with each exchange.
    pub number: u64,
    /// The time of the last outside change that the exchange knew, in nanoseconds since 1970.
    pub change_ns: i128,
    /// The fingerprint of the merged bytes: the file's content unless another program wrote into it.
    pub merged_fingerprint: u64,
    /// The fingerprint of the new bytes: the file's content if the exchange never happened.
    pub new_fingerprint: u64,
}

impl DisplacedName {
    /// The name of a file displaced from the exchange file `of`.
    pub fn file_name(&self, of: &str) -> String {
        format!(
            ".{of}-{}-{}-{:016x}-{:016x}",
            self.number, self.change_ns, self.merged_fingerprint, self.new_fingerprint
        )
    }

    /// Parses a name; `None` for any other file.
    pub fn parse(of: &str, name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix('.')?.strip_prefix(of)?.strip_prefix('-')?.split('-');
        let parsed = Self {
            number: parts.next()?.parse().ok()?,
            change_ns: parts.next()?.parse().ok()?,
            merged_fingerprint: u64::from_str_radix(parts.next()?, 16).ok()?,
            new_fingerprint: u64::from_str_radix(parts.next()?, 16).ok()?,
        };
        parts.next().is_none().then_some(parsed)
    }
}

/// One reading of a file.
#[derive(Debug, Clone)]
pub(super) struct FileContent {
    /// The bytes; empty if there were too many.
    pub bytes: Vec<u8>,
    /// The fingerprint of the bytes.
    pub fingerprint: u64,
    /// True if the bytes are valid content.
    pub is_valid: bool,
    /// The file's stamp from before the read.
    pub stamp: FileStamp,
}

impl FileContent {
    /// The bytes, unless there were too many.
    pub fn known_bytes(&self) -> Option<&[u8]> {
        (!self.bytes.is_empty() || self.stamp.bytes == 0).then_some(&self.bytes)
    }
}

/// The fingerprint of `bytes`: FNV-1a over words of eight bytes, with the upper half folded in after each word.
///
/// It is part of file names, so it must be the same in every version of Brigade.
pub(super) fn fingerprint(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    // The length distinguishes trailing zeros from padding.
    let ends = [last, (bytes.len() as u64).to_le_bytes()];
    words.iter().chain(&ends).fold(0xcbf2_9ce4_8422_2325, |hash, word| {
        let hash = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(0x0100_0000_01b3);
        hash ^ (hash >> 32)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displaced_file_name_round_trips() {
        let name = DisplacedName {
            number: 7,
            change_ns: 1_763_688_000_123_456_789,
            merged_fingerprint: 1,
            new_fingerprint: u64::MAX,
        };
        let text = name.file_name("agent_state.json");
        assert_eq!(DisplacedName::parse("agent_state.json", &text), Some(name));
        assert_eq!(DisplacedName::parse("config.json", &text), None);
        for other in ["agent_state.json", ".agent_state.json", ".agent_state.json-1-2-3", ".agent_state.json-1-2-3-4-5"]
        {
            assert_eq!(DisplacedName::parse("agent_state.json", other), None, "{other}");
        }
    }

    #[test]
    fn fingerprint_differs_for_any_byte_change() {
        let text: Vec<u8> = (1..=100).collect();
        let mut fingerprints = std::collections::HashSet::from([fingerprint(&text)]);
        for at in 0..text.len() {
            let mut other = text.clone();
            other[at] ^= 0x80;
            assert!(fingerprints.insert(fingerprint(&other)) && fingerprints.insert(fingerprint(&text[..at])), "{at}");
        }
        assert!((0..20).all(|length| fingerprints.insert(fingerprint(&vec![0; length + 1]))));
    }

    #[test]
    fn fingerprint_is_stable_across_versions() {
        assert_eq!(
            (fingerprint(b""), fingerprint(b"foobar, and so on")),
            (0x6885_3b6a_3912_cca3, 0x23c4_09c0_4d20_b85d)
        );
    }
}
