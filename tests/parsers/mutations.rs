//! Inputs for parsers: known difficult ones, and samples that a seed changes at random.

/// Bytes that are inserted: pieces of the formats, and values at their limits.
const PIECES: [&[u8]; 38] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b":",
    b",",
    b"\\",
    b"\n",
    b"\r",
    b"\0",
    b"null",
    b"true",
    b"-1",
    b"0",
    b"1e999",
    b"18446744073709551616",
    b"-9223372036854775809",
    b"0.1",
    b"\"\"",
    b"{}",
    b"[]",
    b"\\ud800",
    b"\\u0000",
    b"\xff",
    b"\xef\xbb\xbf",
    "\u{2028}".as_bytes(),
    "\u{85}".as_bytes(),
    "\u{200b}".as_bytes(),
    b"```",
    b"~~~",
    b"## ",
    b"after: ",
    b"data: ",
    b"<inbox>",
    b"</auto-claimed>",
    b"@@ -1 +1 @@",
    b"= ",
];

const CHANGES_MAX: usize = 8;
/// The largest changed sample, in bytes; longer ones are cut. [`difficult_inputs`] tests long inputs.
const BYTES_MAX: usize = 1 << 16;
/// The length of long inputs: enough to show work that grows faster than the input.
const LONG_BYTES: usize = 1 << 18;

/// Difficult inputs: empty, deep, long, invalid text.
pub fn difficult_inputs(samples: &[&[u8]]) -> Vec<Vec<u8>> {
    let repeated = |piece: &[u8]| piece.repeat(LONG_BYTES / piece.len().max(1));
    let mut all: Vec<Vec<u8>> = vec![Vec::new(), (0..=255).collect(), b"\xef\xbb\xbf{}".to_vec()];
    all.extend(PIECES.iter().map(|piece| repeated(piece)));
    let deep: [&[u8]; 6] = [b"{\"a\":", b"[{", b"a=[", b"a.", b"<inbox>\n", b"> - * 1. "];
    all.extend(deep.iter().map(|piece| repeated(piece)));
    all.push([b"a = ", repeated(b"[").as_slice()].concat());
    all.push([b"data: ", repeated(b"x").as_slice()].concat());
    all.extend(samples.iter().map(|sample| repeated(sample)));
    all.extend(samples.iter().map(|sample| sample.to_vec()));
    all
}

/// A sample, or random bytes, changed a few times.
pub fn mutated(samples: &[&[u8]], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = match random.u32(..16) {
        0 => (0..random.usize(..200)).map(|_| random.u8(..)).collect(),
        _ => random.choice(samples).copied().unwrap_or_default().to_vec(),
    };
    for _ in 0..random.usize(1..=CHANGES_MAX) {
        change(&mut bytes, samples, random);
    }
    bytes.truncate(BYTES_MAX);
    bytes
}

fn change(bytes: &mut Vec<u8>, samples: &[&[u8]], random: &mut fastrand::Rng) {
    let at = random.usize(..=bytes.len());
    let end = (at + random.usize(..64)).min(bytes.len());
    let splice = |bytes: &mut Vec<u8>, range: std::ops::Range<usize>, new: Vec<u8>| {
        bytes.splice(range, new);
    };
    match random.u32(..9) {
        0 if at < bytes.len() => bytes[at] ^= 1 << random.u32(..8),
        1 if at < bytes.len() => bytes[at] = random.u8(..),
        2 => splice(bytes, at..end, Vec::new()),
        3 => splice(bytes, at..at, bytes[at..end].to_vec()),
        4 => bytes.truncate(at),
        5 => {
            let other = random.choice(samples).copied().unwrap_or_default();
            let from = random.usize(..=other.len());
            let to = (from + random.usize(..200)).min(other.len());
            splice(bytes, at..end, other[from..to].to_vec());
        }
        6 => swap_values(bytes, random),
        _ => splice(bytes, at..if random.bool() { at } else { end }, random.choice(&PIECES).unwrap().to_vec()),
    }
}

/// Replaces the value of one field with that of another. Fields are found by colons and commas.
fn swap_values(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) {
    let values: Vec<std::ops::Range<usize>> = bytes
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b':')
        .map(|(at, _)| {
            let length = bytes[at + 1..].iter().position(|byte| b",\n}".contains(byte));
            at + 1..length.map_or(bytes.len(), |length| at + 1 + length)
        })
        .collect();
    if let (Some(from), Some(to)) = (random.choice(&values), random.choice(&values)) {
        let value = bytes[from.clone()].to_vec();
        bytes.splice(to.clone(), value);
    }
}
