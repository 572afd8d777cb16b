//! The durability of accepted data.

/// The events that accepted data survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// The death of every process.
    Process,
    /// Also a power cut.
    #[default]
    Power,
}

impl Durability {
    /// Returns the word that stores record.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Power => "power",
        }
    }

    /// Returns the durability of a recorded word; the stronger one for an unknown word.
    pub fn from_word(word: &str) -> Self {
        if word == Self::Process.as_str() { Self::Process } else { Self::Power }
    }
}
