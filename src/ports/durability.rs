//! The durability of accepted data.

use crate::domain::text::words::words;

words! {
    /// The events that accepted data survives.
    #[derive(Default)]
    pub enum Durability {
        /// The death of every process.
        Process = "process",
        /// Also a power cut.
        #[default]
        Power = "power",
    }
}
