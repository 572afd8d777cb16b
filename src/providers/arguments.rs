//! The arguments of a call in APIs that carry them as text: parsed for tools, and as the model's own text for later requests. Providers
//! cache requests by their bytes, so the text goes back as it came.

use std::borrow::Cow;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::api::ProtocolError;
use crate::domain::agent::transcript::{Block, Extra};
use crate::domain::text::characters::readable_json;

/// Returns true if this text is a whole JSON object, or empty, as for a call without arguments.
pub fn are_whole(text: &str) -> bool {
    text.trim().is_empty() || serde_json::from_str::<Map<String, Value>>(&readable_json(text)).is_ok()
}

/// Returns the error of an answer with incomplete arguments that ends as if it were complete. Gateways end a cut answer so.
pub fn hidden_cut() -> ProtocolError {
    ProtocolError::Invalid("a call has incomplete arguments, so the answer was cut".to_owned())
}

/// Returns a call. Arguments that are not whole stay text, and such a call is never run.
pub fn call(id: String, name: String, text: String, extra: Extra) -> Block {
    let (input, arguments) = if text.trim().is_empty() {
        (Value::Object(Map::new()), None)
    } else {
        match serde_json::from_str(&readable_json(&text)) {
            Ok(input @ Value::Object(_)) => {
                let shortest = input.to_string();
                (input, (shortest != text).then_some(text))
            }
            _ => (Value::String(text), None),
        }
    };
    Block::ToolUse { id, name, input, arguments, extra }
}

/// Returns a call of a cut answer, which is never run, even if its arguments are whole.
pub fn cut_call(id: String, name: String, text: String, extra: Extra) -> Block {
    Block::ToolUse { id, name, input: Value::String(text), arguments: None, extra }
}

/// Returns a call that is never run, with its arguments as text. Another block stays as it is.
pub fn without_effect(block: Block) -> Block {
    match block {
        Block::ToolUse { id, name, input, extra, .. } => {
            let text = input.as_str().map_or_else(|| input.to_string(), str::to_owned);
            cut_call(id, name, text, extra)
        }
        block => block,
    }
}

/// Returns the text of arguments for a request. Servers refuse every later request if the history has a call with other arguments than
/// an object, so a cut call has none. Its result tells the model the error.
pub fn text_to_send<'a>(input: &Value, own: Option<&'a str>) -> Cow<'a, str> {
    let is_object = |text: &&str| serde_json::from_str::<&RawValue>(text).is_ok_and(|raw| raw.get().starts_with('{'));
    match (own.filter(is_object), input) {
        (Some(own), _) => Cow::Borrowed(own),
        (None, Value::Object(_)) => Cow::Owned(input.to_string()),
        (None, _) => Cow::Borrowed("{}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sent(block: &Block) -> String {
        let Block::ToolUse { input, arguments, .. } = block else { panic!("a call") };
        text_to_send(input, arguments.as_deref()).into_owned()
    }

    fn made_of(text: &str) -> Block {
        call("c".to_owned(), "bash".to_owned(), text.to_owned(), Extra::new())
    }

    #[test]
    fn valid_arguments_are_sent_as_they_came() {
        for text in ["{}", r#"{"a":1}"#, "{ \"a\" : 1e3,\n\"b\": \"\\u00e4\" }", r#"{"a":1,"a":2}"#] {
            assert_eq!(sent(&made_of(text)), text);
        }
        assert_eq!(made_of(r#"{"a":1}"#), Block::tool_use("c", "bash", serde_json::json!({"a": 1})));
    }

    #[test]
    fn cut_or_empty_arguments_are_sent_as_empty_object() {
        for text in ["", " ", "{\"command\":\"rm ", "[1]", "7", "null"] {
            assert_eq!(sent(&made_of(text)), "{}", "{text}");
        }
        let cut = cut_call("c".to_owned(), "bash".to_owned(), r#"{"a":1}"#.to_owned(), Extra::new());
        assert_eq!(sent(&cut), "{}");
        assert_eq!(text_to_send(&serde_json::json!({"a": 1}), Some("{\"a\":")), "{\"a\":1}", "a damaged transcript");
    }

    proptest! {
        #[test]
        fn sent_arguments_are_an_object(text in r#"[{}\[\]":,a1 ]{0,12}"#) {
            let sent = sent(&made_of(&text));
            prop_assert!(serde_json::from_str::<Map<String, Value>>(&sent).is_ok(), "{}", sent);
        }
    }
}
