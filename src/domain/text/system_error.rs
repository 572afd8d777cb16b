//! The system's errors in texts for people.

use std::io;

/// Returns the system's reason, such as `No such file or directory`, without the error's number.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(code) => text.trim_end_matches(&format!(" (os error {code})")).to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_error_is_shown_without_its_number() {
        let error = std::fs::read("/no/such/file").unwrap_err();
        assert_eq!(reason(&error), "No such file or directory");
        assert_eq!(reason(&io::Error::other("it is a pipe")), "it is a pipe");
    }
}
