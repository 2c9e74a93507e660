//! Bodies given as `field=value` words, for objects with many fields.
//!
//! A dot steps into an object. A value is JSON where it reads as JSON, else text. The body is then
//! read by the very function that the service reads it with, so that a wrong field is refused here
//! with the same words.

use clap::Args;
use plimsoll_api::{Body, parse};
use serde_json::{Map, Value};

use crate::failure::Failure;

/// Fields of a body.
#[derive(Args, Clone, Debug)]
pub(crate) struct Fields {
    /// Fields as NAME=VALUE; a dot steps into an object (`preemption.mode=idle`), a value is JSON
    /// where it reads as JSON (`limit=null`, `command=["sh"]`), else text
    #[arg(value_name = "FIELD=VALUE", value_parser = super::pair)]
    pub(crate) fields: Vec<(String, String)>,
}

impl Fields {
    /// The body, checked, with one more field where an object is named by the command line.
    ///
    /// # Errors
    /// Names the field that is unknown, malformed or out of its bound.
    pub(crate) fn body<T: Body>(&self, name: Option<(&str, &str)>) -> Result<T, Failure> {
        let mut body = Map::new();
        if let Some((field, value)) = name {
            body.insert(field.to_owned(), Value::from(value));
        }
        for (path, text) in &self.fields {
            let value = serde_json::from_str(text).unwrap_or_else(|_| Value::from(text.as_str()));
            put(&mut body, path, value).map_err(Failure::usage)?;
        }
        let bytes = serde_json::to_vec(&body)
            .map_err(|error| Failure::usage(format!("the fields make no JSON: {error}")))?;
        Ok(parse(&bytes)?)
    }
}

/// Puts a value at a path.
fn put(body: &mut Map<String, Value>, path: &str, value: Value) -> Result<(), String> {
    let Some((first, rest)) = path.split_once('.') else {
        return match body.insert(path.to_owned(), value) {
            None => Ok(()),
            Some(_) => Err(format!("{path} is given twice")),
        };
    };
    match body.entry(first).or_insert_with(|| Value::Object(Map::new())) {
        Value::Object(inner) => put(inner, rest, value).map_err(|error| format!("{first}.{error}")),
        _ => Err(format!("{first} is given twice")),
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_api::{Plan, Pool};

    use super::*;

    fn fields(words: &[&str]) -> Fields {
        Fields { fields: words.iter().map(|word| super::super::pair(word).unwrap()).collect() }
    }

    #[test]
    fn words_become_a_checked_body() {
        let words = fields(&["limit=10", "regime=committed", "preemption.mode=idle"]);
        let pool: Pool = words.body(Some(("name", "fast"))).unwrap();
        let pool = serde_json::to_value(pool).unwrap();
        assert_eq!((&pool["name"], &pool["limit"]), (&"fast".into(), &10.into()));
        assert_eq!(pool["preemption"]["mode"], "idle");
        let words = fields(&["concurrency.sandboxes.limit=5", "rate.creates_per_minute.limit=60"]);
        let plan: Plan = words.body(Some(("id", "small"))).unwrap();
        assert_eq!(plan.concurrency.sandboxes.limit, Some(5));
        assert_eq!(plan.rate.creates_per_minute.limit, Some(60));
    }

    #[test]
    fn wrong_fields_are_named() {
        for (word, name) in
            [("limt=10", "limt"), ("stale_seconds=0", "stale_seconds"), ("regime=maybe", "regime")]
        {
            let failure = fields(&[word]).body::<Pool>(Some(("name", "fast"))).unwrap_err();
            assert!(failure.text().contains(name), "{}", failure.text());
        }
        let twice = fields(&["limit=1", "limit=2"]).body::<Pool>(Some(("name", "fast")));
        assert!(twice.unwrap_err().text().contains("twice"));
    }
}
