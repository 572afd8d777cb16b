//! Enums whose values have one word each in files, settings and texts for people.

/// Defines such enums. Each value stands with its word, which serde uses too.
macro_rules! words {
    ($($(#[$meta:meta])* $visibility:vis enum $name:ident {
        $($(#[$value_meta:meta])* $value:ident = $word:literal,)+
    })+) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        $visibility enum $name {
            $($(#[$value_meta])* #[serde(rename = $word)] $value,)+
        }

        impl $name {
            /// All values, in the order of their definition.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$value),+];

            /// The words of all values.
            pub const WORDS: [&'static str; Self::ALL.len()] = [$($word),+];

            /// Returns its word.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)+
                }
            }

            /// Returns the value of this word.
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|value| value.as_str() == word)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    )+};
}
pub(crate) use words;
