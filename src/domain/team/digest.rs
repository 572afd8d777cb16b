//! Digests of what a person agrees to.

use ring::digest::{Context, SHA256};

/// Returns the SHA-256 of these parts in hexadecimal. Each part counts with its length, so that text cannot move from one part into the
/// next.
pub fn sha256(parts: &[&[u8]]) -> String {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_le_bytes());
        context.update(part);
    }
    context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_separates_parts() {
        assert_ne!(sha256(&[b"ab", b"c"]), sha256(&[b"a", b"bc"]));
        // The SHA-256 of no bytes.
        assert_eq!(sha256(&[]), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
