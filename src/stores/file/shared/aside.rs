//! What was swapped out of a shared file, and the names it is kept under. It knows nothing of what the files say.
//!
//! A writer may have opened the old file before the swap and write into it afterwards. So the old file is kept aside for a
//! while, under a name that says what it held: whoever finds other bytes in it, also after a crash, has found a change of an
//! outside writer that nobody has seen yet.

use crate::stores::fs::Stamp;

/// What the name of a file aside says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AsideName {
    /// Counts up with each swap.
    pub number: u64,
    /// When the last outside change was made that the swap knew of, in nanoseconds since 1970.
    pub change_ns: i128,
    /// The print of the bytes that were merged: what it holds when nobody wrote into it since.
    pub seen: u64,
    /// The print of the bytes that were put in its place: what it holds when the swap never came about.
    pub put: u64,
}

impl AsideName {
    /// The name, for a file swapped out of the shared file `of`.
    pub fn file_name(&self, of: &str) -> String {
        format!(".{of}-{}-{}-{:016x}-{:016x}", self.number, self.change_ns, self.seen, self.put)
    }

    /// Reads a name back; `None` for any other file.
    pub fn parse(of: &str, name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix('.')?.strip_prefix(of)?.strip_prefix('-')?.split('-');
        let parsed = Self {
            number: parts.next()?.parse().ok()?,
            change_ns: parts.next()?.parse().ok()?,
            seen: u64::from_str_radix(parts.next()?, 16).ok()?,
            put: u64::from_str_radix(parts.next()?, 16).ok()?,
        };
        parts.next().is_none().then_some(parsed)
    }
}

/// One reading of a file.
#[derive(Debug, Clone)]
pub(super) struct Content {
    /// Its bytes; none where there were too many.
    pub bytes: Vec<u8>,
    /// What tells them from others.
    pub print: u64,
    /// Whether they are a whole file of their kind.
    pub is_whole: bool,
    /// The file's stamp from before the reading.
    pub stamp: Stamp,
}

/// FNV-1a over words of eight bytes, its upper half folded in after each: the same in every version of this program, and as good as any
/// for a handful of files, which may be large.
pub(super) fn print(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    // The length tells zeros at the end from none.
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
    fn names_are_read_as_they_were_written() {
        let name = AsideName { number: 7, change_ns: 1_763_688_000_123_456_789, seen: 1, put: u64::MAX };
        let text = name.file_name("agent_state.json");
        assert_eq!(AsideName::parse("agent_state.json", &text), Some(name));
        assert_eq!(AsideName::parse("config.json", &text), None);
        for other in ["agent_state.json", ".agent_state.json", ".agent_state.json-1-2-3", ".agent_state.json-1-2-3-4-5"]
        {
            assert_eq!(AsideName::parse("agent_state.json", other), None, "{other}");
        }
    }

    #[test]
    fn prints_tell_bytes_apart_wherever_they_differ() {
        let text: Vec<u8> = (1..=100).collect();
        let mut prints = std::collections::HashSet::from([print(&text)]);
        for at in 0..text.len() {
            let mut other = text.clone();
            other[at] ^= 0x80;
            assert!(prints.insert(print(&other)) && prints.insert(print(&text[..at])), "{at}");
        }
        assert!((0..20).all(|length| prints.insert(print(&vec![0; length + 1]))));
    }

    #[test]
    fn the_print_stays_what_it_is_from_one_version_to_the_next() {
        assert_eq!((print(b""), print(b"foobar, and so on")), (0x6885_3b6a_3912_cca3, 0x23c4_09c0_4d20_b85d));
    }
}
