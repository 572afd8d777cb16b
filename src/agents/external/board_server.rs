//! Brigade's server of the Model Context Protocol: offers the board's tools to agents. It keeps no state, because some agents repeat
//! the handshake.

use serde_json::{Value, json};

use crate::ports::ToolSpec;

/// The version of the protocol that is answered if the client names none. See modelcontextprotocol.io, "Versioning".
const PROTOCOL_VERSION: &str = "2025-11-25";

/// The JSON-RPC error for an unknown method.
const METHOD_NOT_FOUND: i32 = -32_601;

/// A message of a client, by the action that it requires.
#[derive(Debug, Clone, PartialEq)]
pub enum BoardRequest {
    /// The response is ready.
    Answered(Value),
    /// A notification needs no response.
    Notification,
    /// The client calls a tool.
    Call(BoardCall),
}

/// A call of a board tool.
#[derive(Debug, Clone, PartialEq)]
pub struct BoardCall {
    /// The id of the request, for [`BoardCall::response`].
    id: Value,
    /// The tool's name.
    pub tool: String,
    /// The arguments.
    pub arguments: Value,
}

impl BoardRequest {
    /// Reads a message. `tools` are the tools that the client can call.
    pub fn read(message: &Value, tools: &[ToolSpec]) -> Self {
        let Some(id) = message.get("id").filter(|id| !id.is_null()) else { return Self::Notification };
        let params = &message["params"];
        match message["method"].as_str().unwrap_or_default() {
            "initialize" => Self::Answered(result(id, initialize_result(params))),
            "ping" => Self::Answered(result(id, json!({}))),
            "tools/list" => {
                let tools: Vec<Value> = tools.iter().map(tool_entry).collect();
                Self::Answered(result(id, json!({ "tools": tools })))
            }
            "tools/call" => Self::Call(BoardCall {
                id: id.clone(),
                tool: params["name"].as_str().unwrap_or_default().to_owned(),
                arguments: params["arguments"].clone(),
            }),
            method => {
                let message = format!("there is no method `{method}`");
                let error = json!({ "code": METHOD_NOT_FOUND, "message": message });
                Self::Answered(json!({ "jsonrpc": "2.0", "id": id, "error": error }))
            }
        }
    }
}

impl BoardCall {
    /// Returns the response with the output of the tool.
    pub fn response(&self, text: &str, is_error: bool) -> Value {
        result(&self.id, json!({ "content": [{ "type": "text", "text": text }], "isError": is_error }))
    }
}

fn initialize_result(params: &Value) -> Value {
    let version = params["protocolVersion"].as_str().unwrap_or(PROTOCOL_VERSION);
    json!({
        "protocolVersion": version,
        "capabilities": { "tools": {} },
        "serverInfo": { "name": "brigade", "version": env!("CARGO_PKG_VERSION") },
    })
}

fn tool_entry(tool: &ToolSpec) -> Value {
    json!({ "name": tool.name, "description": tool.description, "inputSchema": tool.input_schema })
}

fn result(id: &Value, result: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "result": result })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(message: Value) -> BoardRequest {
        let input_schema = json!({ "type": "object" });
        let tool = ToolSpec { name: "task_get".into(), description: "Returns a task.".into(), input_schema };
        BoardRequest::read(&message, &[tool])
    }

    #[test]
    fn handshake_can_be_repeated() {
        let initialize = json!({"method": "initialize", "params": {"protocolVersion": "2025-06-18"}, "id": 0});
        for _ in 0..2 {
            let BoardRequest::Answered(answer) = read(initialize.clone()) else { panic!("an answer") };
            assert_eq!(answer["result"]["protocolVersion"], "2025-06-18");
            assert_eq!(read(json!({"method": "notifications/initialized"})), BoardRequest::Notification);
            let BoardRequest::Answered(list) = read(json!({"method": "tools/list", "id": 1})) else { panic!("a list") };
            assert_eq!(list["result"]["tools"][0]["name"], "task_get");
        }
    }

    #[test]
    fn response_has_id_of_call() {
        let params = json!({"name": "task_get", "arguments": {"task_id": 1}});
        let BoardRequest::Call(call) = read(json!({"method": "tools/call", "params": params, "id": 2})) else {
            panic!("a call")
        };
        assert_eq!((call.tool.as_str(), &call.arguments), ("task_get", &json!({"task_id": 1})));
        let response = call.response("no", true);
        assert_eq!((&response["id"], &response["result"]["isError"]), (&json!(2), &json!(true)));
    }

    #[test]
    fn unknown_method_is_an_error() {
        let BoardRequest::Answered(answer) = read(json!({"method": "resources/list", "id": "x"})) else { panic!() };
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!("x"), &json!(METHOD_NOT_FOUND)));
    }
}
