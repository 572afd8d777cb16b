//! Suggestions for misspelt words.

/// The likeness from which a candidate is similar enough.
const LIKENESS_MIN: f64 = 0.8;

/// Returns the candidate with the most similar spelling, if it is similar enough for a "did you mean".
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    candidates
        .map(|candidate| (likeness(&lower, candidate), candidate))
        .filter(|(likeness, _)| *likeness > LIKENESS_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// Returns the candidates with similar spellings, the most similar first, at most `count_max`. One that contains the word is similar.
pub fn nearest_up_to<'a>(count_max: usize, word: &str, candidates: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let lower = word.to_lowercase();
    let mut similar: Vec<(f64, &str)> = candidates
        .map(|candidate| {
            let contains = !lower.is_empty() && candidate.to_lowercase().contains(&lower);
            (likeness(&lower, candidate).max(if contains { 0.95 } else { 0.0 }), candidate)
        })
        .filter(|(likeness, _)| *likeness > LIKENESS_MIN)
        .collect();
    similar.sort_by(|a, b| b.0.total_cmp(&a.0));
    similar.into_iter().take(count_max).map(|(_, candidate)| candidate).collect()
}

/// The likeness of a word in lower case and a candidate, from 0 to 1.
fn likeness(lower: &str, candidate: &str) -> f64 {
    let candidate = candidate.to_lowercase();
    // Jaro-Winkler rates short words with two swapped letters too low.
    let one_slip = strsim::osa_distance(&candidate, lower) == 1;
    strsim::jaro_winkler(&candidate, lower).max(if one_slip { 0.9 } else { 0.0 })
}

/// Returns a hint with the nearest candidate, if one is similar enough.
pub fn did_you_mean<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<String> {
    nearest(word, candidates).map(|meant| format!("did you mean `{meant}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_come_in_order_of_likeness() {
        let names = ["llama3:8b", "qwen2.5-coder:7b", "qwen2.5-coder:1.5b", "phi4"];
        assert_eq!(nearest_up_to(3, "qwen2.5-coder", names.into_iter()), ["qwen2.5-coder:7b", "qwen2.5-coder:1.5b"]);
        assert_eq!(nearest_up_to(1, "qwen2.5-coder:2b", names.into_iter()), ["qwen2.5-coder:7b"]);
        assert!(nearest_up_to(3, "gpt", names.into_iter()).is_empty());
    }
}
