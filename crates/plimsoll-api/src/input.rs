//! Reading what callers send, with errors that name the field and its bound.
//!
//! serde says what is wrong, but for a value of the wrong type it does not say where. The parser
//! does know the place as a byte offset; [`locate`] walks the text to that offset and returns the
//! path of the field that stands there. Only refused bodies pay for the walk.

mod bound;
mod locate;

use plimsoll_types::bounds;
use serde::de::DeserializeOwned;

pub(crate) use bound::{Bound, LIFECYCLE_BOUND};
use locate::{list_for_object, locate};

/// The header that makes a create idempotent.
pub const IDEMPOTENCY_KEY_HEADER: &str = "Idempotency-Key";

/// The header by which an operator's key acts for a tenant other than the default one.
pub const TENANT_HEADER: &str = "Plimsoll-Tenant";

/// Most characters of a refused value that an error repeats: enough to recognise it, too few to
/// flood a log.
const GIVEN_LENGTH_MAX: usize = 80;

/// Most characters of a field's path in an error: names are the caller's own where they are
/// unknown, and may be of any length.
const FIELD_LENGTH_MAX: usize = 200;

/// Bad input: which field, what stood there, and what may stand there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {given} is refused; expected {bound}")]
pub struct FieldError {
    /// The path of the field, such as `memory_mib` or `items[3].key`; `body` for the whole.
    pub field: String,
    /// What was given, shortened; hidden where the field holds secrets.
    pub given: String,
    /// What is allowed.
    pub bound: String,
}

impl FieldError {
    /// An error about `field`.
    #[must_use]
    pub fn new(
        field: impl Into<String>,
        given: impl std::fmt::Display,
        bound: impl Into<String>,
    ) -> Self {
        let field = field.into();
        let given = if is_secret(&field) {
            "a hidden value".to_owned()
        } else {
            shorten(&given, GIVEN_LENGTH_MAX)
        };
        Self { field: shorten(&field, FIELD_LENGTH_MAX), given, bound: bound.into() }
    }

    /// The same error about a field inside `parent`.
    #[must_use]
    pub fn within(mut self, parent: &str) -> Self {
        self.field = format!("{parent}.{}", self.field);
        self
    }
}

/// Environment values and secrets never reach an error, which may be logged.
fn is_secret(field: &str) -> bool {
    field.split('.').any(|part| matches!(part, "env" | "secret"))
}

fn shorten(given: &impl std::fmt::Display, length_max: usize) -> String {
    let text = given.to_string();
    match text.char_indices().nth(length_max) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// A body that callers send: it knows what its fields may hold.
pub trait Body: DeserializeOwned {
    /// Fields, at any depth, that hold objects of fields. serde would take a list for one of them,
    /// field by field in their order: limits that nobody has named.
    const OBJECTS: &'static [&'static str] = &[];

    /// Checks what the types alone do not.
    ///
    /// # Errors
    /// Names the first field that is out of its bound.
    fn validate(&self) -> Result<(), FieldError>;
}

/// Reads and checks one body.
///
/// # Errors
/// Names the field that is malformed, unknown, missing or out of its bound.
///
/// ```
/// use plimsoll_api::{CreateSandbox, parse};
///
/// let error = parse::<CreateSandbox>(br#"{"template": "shell", "memory_mib": 1.5}"#).unwrap_err();
/// assert_eq!(error.field, "memory_mib");
/// assert_eq!(error.bound, "an integer from 1 to 16777216");
/// ```
pub fn parse<T: Body>(bytes: &[u8]) -> Result<T, FieldError> {
    // serde would take a list for an object, field by field in their order.
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return Err(FieldError::new("body", "a list", "an object"));
    }
    let body: T = serde_json::from_slice(bytes).map_err(|error| explain(bytes, &error))?;
    if !T::OBJECTS.is_empty()
        && let Some(place) = list_for_object(bytes, T::OBJECTS)
    {
        return Err(FieldError::new(place.path, place.given, "an object"));
    }
    body.validate()?;
    Ok(body)
}

/// Reads and checks a body that may be left out altogether; `null` is what some clients send then.
///
/// # Errors
/// As [`parse`].
pub fn parse_or_default<T: Body + Default>(bytes: &[u8]) -> Result<T, FieldError> {
    match bytes.trim_ascii() {
        b"" | b"null" => Ok(T::default()),
        _ => parse(bytes),
    }
}

/// Turns serde's error into one that names the field.
fn explain(bytes: &[u8], error: &serde_json::Error) -> FieldError {
    let message = error.to_string();
    let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(said, _)| said);
    let place = locate(bytes, error.line(), error.column());
    if !error.is_data() {
        let field = if place.path.is_empty() { "body" } else { &place.path };
        return FieldError::new(field, "what follows", format!("JSON ({message})"));
    }
    let quoted = || message.split('`').nth(1).unwrap_or_default();
    if message.starts_with("missing field") {
        return FieldError::new(join(&place.container, quoted()), "nothing", "a value");
    }
    if message.starts_with("unknown field") {
        let known = message.rsplit_once(", expected ").map_or("no field", |(_, known)| known);
        let known = known.trim_start_matches("one of ");
        return FieldError::new(
            join(&place.container, quoted()),
            "an unknown field",
            format!("one of the known fields: {}", known.replace('`', "")),
        );
    }
    if message.starts_with("duplicate field") {
        return FieldError::new(join(&place.container, quoted()), "a second value", "one value");
    }
    // The parser places a wrong type at its value. One at the end of an object was found only
    // after all of it had been read, as tagged bodies are: there is no telling where it stood.
    let lost = place.at_end && message.starts_with("invalid ");
    if lost {
        return FieldError::new("body", "something in it", allowed(message));
    }
    if place.path.is_empty() {
        return FieldError::new("body", place.given, allowed(message));
    }
    let field = place.path;
    let expected = Bound::of(&field).map_or_else(|| allowed(message), |bound| bound.to_string());
    let expected = if is_secret(&field) { "text".into() } else { expected };
    FieldError::new(field, place.given, expected)
}

/// The part of a parser's message that says what is allowed. It comes last: what the caller gave
/// stands before it, and may hold anything.
pub(crate) fn allowed(message: &str) -> String {
    for (mark, lead) in [(" is no name: ", ""), (" is none of ", "one of ")] {
        if let Some((_, rest)) = message.rsplit_once(mark) {
            return format!("{lead}{rest}");
        }
    }
    let expected = message.rsplit_once(", expected ").map_or(message, |(_, expected)| expected);
    let expected = expected.trim_start_matches("expected ").replace('`', "");
    match expected.as_str() {
        "u8" | "u16" | "u32" | "u64" | "usize" => "an integer of at least 0".to_owned(),
        "i8" | "i16" | "i32" | "i64" => "an integer".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "an object".to_owned(),
        "a borrowed string" => "a string".to_owned(),
        other if other.starts_with("struct ") => "an object".to_owned(),
        _ => expected,
    }
}

fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") }
}

/// Checks an idempotency key: 1 to 255 visible ASCII characters.
///
/// # Errors
/// Names the header and the bound.
pub fn check_idempotency_key(key: &str) -> Result<(), FieldError> {
    check_key(IDEMPOTENCY_KEY_HEADER, key)
}

/// Checks a key under the name by which the caller knows it.
pub(crate) fn check_key(field: &str, key: &str) -> Result<(), FieldError> {
    let fits = (1..=bounds::IDEMPOTENCY_KEY_LENGTH_MAX).contains(&key.len());
    if fits && key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    Err(FieldError::new(
        field,
        format_args!("{key:?}"),
        format!("1 to {} visible ASCII characters", bounds::IDEMPOTENCY_KEY_LENGTH_MAX),
    ))
}

/// Checks an integer against the bound of its field.
pub(crate) fn check(field: &str, value: impl Into<i128>) -> Result<(), FieldError> {
    let value = value.into();
    match Bound::of(field) {
        Some(bound) if !bound.holds(value) => Err(FieldError::new(field, value, bound.to_string())),
        _ => Ok(()),
    }
}

/// As [`check`], for a value that may be absent.
pub(crate) fn check_opt(field: &str, value: Option<impl Into<i128>>) -> Result<(), FieldError> {
    value.map_or(Ok(()), |value| check(field, value))
}

/// Checks the length of a text in bytes.
pub(crate) fn check_text(field: &str, text: &str, length_max: usize) -> Result<(), FieldError> {
    if text.len() <= length_max && !text.contains('\0') {
        return Ok(());
    }
    Err(FieldError::new(
        field,
        format_args!("{text:?}"),
        format!("at most {length_max} bytes without NUL"),
    ))
}

/// Checks labels: their number, and each key and value.
pub(crate) fn check_labels<'a>(
    field: &str,
    labels: impl ExactSizeIterator<Item = (&'a String, &'a String)>,
) -> Result<(), FieldError> {
    if labels.len() > bounds::LABELS_MAX {
        let bound = format!("at most {} labels", bounds::LABELS_MAX);
        return Err(FieldError::new(field, format_args!("{} labels", labels.len()), bound));
    }
    for (key, value) in labels {
        if key.is_empty() {
            return Err(FieldError::new(field, "an empty key", "keys of at least one character"));
        }
        check_text(field, key, bounds::LABEL_LENGTH_MAX)?;
        check_text(&join(field, key), value, bounds::LABEL_LENGTH_MAX)?;
    }
    Ok(())
}

/// Checks a command: the number of its words and of all their bytes.
pub(crate) fn check_command_words(field: &str, command: &[String]) -> Result<(), FieldError> {
    if command.len() > bounds::COMMAND_WORDS_MAX {
        let bound = format!("at most {} words", bounds::COMMAND_WORDS_MAX);
        return Err(FieldError::new(field, format_args!("{} words", command.len()), bound));
    }
    let bytes: usize = command.iter().map(|word| word.len().saturating_add(1)).sum();
    if bytes > bounds::COMMAND_BYTES_MAX {
        let bound = format!("at most {} bytes in all", bounds::COMMAND_BYTES_MAX);
        return Err(FieldError::new(field, format_args!("{bytes} bytes"), bound));
    }
    if command.first().is_some_and(String::is_empty) {
        return Err(FieldError::new(format!("{field}[0]"), "an empty word", "a program to run"));
    }
    match command.iter().position(|word| word.contains('\0')) {
        Some(at) => {
            let bound = "words without NUL";
            Err(FieldError::new(format!("{field}[{at}]"), "a word with NUL", bound))
        }
        None => Ok(()),
    }
}

/// Checks counted resources: their number and their names.
pub(crate) fn check_counted(
    field: &str,
    counted: &plimsoll_types::Counted,
) -> Result<(), FieldError> {
    if counted.len() > bounds::COUNTED_MAX {
        let bound = format!("at most {} counted resources", bounds::COUNTED_MAX);
        return Err(FieldError::new(field, format_args!("{} of them", counted.len()), bound));
    }
    for (name, value) in counted {
        if name.is_empty() || name.len() > bounds::NAME_LENGTH_MAX {
            let bound = format!("names of 1 to {} bytes", bounds::NAME_LENGTH_MAX);
            return Err(FieldError::new(field, format_args!("{name:?}"), bound));
        }
        check(&format!("counted.{name}"), *value).map_err(|mut error| {
            error.field = join(field, name);
            error
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
