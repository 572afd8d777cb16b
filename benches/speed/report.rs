//! Results: medians, percentiles, the table and the JSON file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

/// Rounds of a comparison.
pub const ROUNDS: usize = 5;

/// The limit of a figure.
#[derive(Debug, Clone, Copy)]
pub enum Target {
    AtMost(f64),
    Below(f64),
    AtLeast(f64),
    /// For comparison only, without a limit.
    Nothing,
}

impl Target {
    fn is_reached(self, measured: f64) -> Option<bool> {
        match self {
            Self::AtMost(most) => Some(measured <= most),
            Self::Below(bound) => Some(measured < bound),
            Self::AtLeast(least) => Some(measured >= least),
            Self::Nothing => None,
        }
    }

    fn text(self, unit: &str) -> String {
        match self {
            Self::AtMost(most) => format!("<= {}", format_figure(most, unit)),
            Self::Below(bound) => format!("< {}", format_figure(bound, unit)),
            Self::AtLeast(least) => format!(">= {}", format_figure(least, unit)),
            Self::Nothing => "-".to_owned(),
        }
    }
}

struct Figure {
    row: &'static str,
    title: String,
    measured: f64,
    unit: &'static str,
    target: Target,
    /// The figure of the same run that it is compared with: the bare limit, or the smaller case.
    comparison: String,
}

/// The results of a run.
#[derive(Default)]
pub struct Report {
    row: &'static str,
    figures: Vec<Figure>,
}

impl Report {
    pub fn begin(&mut self, row: &'static str) {
        self.row = row;
    }

    /// Adds a figure. `comparison` names the figure of the same run that it is compared with.
    pub fn add(
        &mut self,
        title: impl Into<String>,
        measured: f64,
        unit: &'static str,
        target: Target,
        comparison: impl Into<String>,
    ) {
        let (title, comparison) = (title.into(), comparison.into());
        self.figures.push(Figure { row: self.row, title, measured, unit, target, comparison });
    }

    /// Prints the table and writes the file. A partial run is written to a separate file.
    pub fn close(&self, is_whole: bool) {
        println!("{}", self.table());
        let folder = target_folder().join("bench");
        let path = folder.join(if is_whole { "speed.json" } else { "speed-some.json" });
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(&path, serde_json::to_string_pretty(&self.to_json()).unwrap() + "\n").unwrap();
        println!("written to {}", path.display());
    }

    fn table(&self) -> String {
        let header = ["row", "what", "measured", "target", "reached", "compared with"].map(str::to_owned);
        let rows: Vec<[String; 6]> = std::iter::once(header)
            .chain(self.figures.iter().map(|figure| {
                let reached = figure.target.is_reached(figure.measured);
                [
                    figure.row.to_owned(),
                    figure.title.clone(),
                    format_figure(figure.measured, figure.unit),
                    figure.target.text(figure.unit),
                    reached.map_or("-", |reached| if reached { "yes" } else { "NO" }).to_owned(),
                    figure.comparison.clone(),
                ]
            }))
            .collect();
        let widths: Vec<usize> =
            (0..6).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
        let line = |row: &[String; 6]| {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}", width = *width)).collect();
            cells.join("  ").trim_end().to_owned()
        };
        rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    fn to_json(&self) -> Value {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let figures: Vec<Value> = self
            .figures
            .iter()
            .map(|figure| {
                json!({
                    "row": figure.row,
                    "what": figure.title,
                    "measured": figure.measured,
                    "unit": figure.unit,
                    "target": figure.target.text(figure.unit),
                    "reached": figure.target.is_reached(figure.measured),
                    "compared_with": figure.comparison,
                })
            })
            .collect();
        json!({ "schema_version": 1, "cores": cores, "rounds": ROUNDS, "findings": figures })
    }
}

/// A figure with its unit, rounded to a useful precision.
pub fn format_figure(value: f64, unit: &str) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {unit}").trim_end().to_owned()
}

pub fn median(values: &[f64]) -> f64 {
    percentile(values, 50)
}

/// The value that this many of a hundred values do not exceed.
pub fn percentile(values: &[f64], hundredths: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let index = (sorted.len() * hundredths).div_ceil(100).saturating_sub(1);
    sorted.get(index).copied().unwrap_or(f64::NAN)
}

pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The build folder of cargo.
fn target_folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().to_owned()
}
