//! Posts notifications. This module is here because it shares the connections of providers, and no other module speaks HTTP.

use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Method, Request, Url};

use super::http;
use crate::ports::Webhook;

/// The longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Posts JSON over HTTP. Redirects are not followed.
#[derive(Debug, Clone, Copy)]
pub struct HttpWebhook;

#[async_trait]
impl Webhook for HttpWebhook {
    async fn post(&self, url: &str, json: String) -> Result<(), String> {
        let url = Url::parse(url).map_err(|error| error.to_string())?;
        let client = http::client(&url)?;
        let mut request = Request::new(Method::POST, url);
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        *request.timeout_mut() = Some(TIMEOUT);
        *request.body_mut() = Some(json.into());
        let response = http::send(&client, request).await.map_err(http::no_answer_reason)?;
        let status = response.status();
        if status.is_success() { Ok(()) } else { Err(format!("it answered {status}")) }
    }
}
