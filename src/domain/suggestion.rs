//! Suggestions for misspelt words.

/// Returns the candidate with the most similar spelling, if it is similar enough for a "did you mean".
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let likeness = |candidate: &str| {
        let candidate = candidate.to_lowercase();
        // Jaro-Winkler rates short words with two swapped letters too low.
        let one_slip = strsim::osa_distance(&candidate, &lower) == 1;
        strsim::jaro_winkler(&candidate, &lower).max(if one_slip { 0.9 } else { 0.0 })
    };
    candidates
        .map(|candidate| (likeness(candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// Returns a hint with the nearest candidate, if one is similar enough.
pub fn did_you_mean<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<String> {
    nearest(word, candidates).map(|meant| format!("did you mean `{meant}`?"))
}
