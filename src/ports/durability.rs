//! The durability of accepted data.

use crate::domain::words::words;

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
