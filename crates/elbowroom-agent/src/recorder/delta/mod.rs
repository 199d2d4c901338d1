//! Compact coding of documents that hardly change from one second to the next.
//!
//! Problem: what the agent knows is a megabyte of JSON at five hundred containers, once a second; a black box of a day would be the
//! size of a disk.
//!
//! Approach: a document is a sequence of [`Part`]s, JSON texts with a key, in an order that hardly changes. A text is taken apart
//! into a *template* and its numbers ([`template`]). Of a part whose template is the one before, only the numbers that
//! changed are kept, as differences; a part that did not change at all costs nothing. The first frame of a chain, a *key frame*, is whole.
//!
//! Properties: decoding gives what was encoded, but for floating-point numbers, which keep seven digits. Decoding arbitrary bytes gives an
//! error or some parts, never a panic, and never more than [`MAX_DOCUMENT`].

mod number;
mod template;
mod varint;

use number::Number;
use std::collections::HashMap;
use template::Template;
use varint::Bytes;

/// One text of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What makes it the same part in the next document.
    pub key: String,
    /// The text: JSON without white space outside its strings.
    pub json: String,
}

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a frame of a recording")]
pub struct InvalidFrame;

/// A part of the frame before: what the next one is a difference to.
#[derive(Clone, Debug, PartialEq)]
struct PreviousPart {
    key: String,
    template: Vec<u8>,
    numbers: Vec<Number>,
}

/// Bytes of memory that a document takes at most: that of several thousand containers has less. A frame adds to the one before it, and
/// what it adds may be deflated to a thousandth.
const MAX_DOCUMENT: usize = 128 << 20;

impl PreviousPart {
    fn allocated_bytes(&self) -> usize {
        size_of::<Self>() + self.key.len() + self.template.len() + size_of_val(&self.numbers[..])
    }
}

/// A count follows: that many parts of the frame before, unchanged.
const SAME: u8 = 0;
/// The next part of the frame before, with other numbers.
const CHANGED: u8 = 1;
/// A part that was not there, or not so.
const NEW: u8 = 2;
/// A count follows: that many parts of the frame before are gone.
const GONE: u8 = 3;

/// Makes frames.
#[derive(Debug, Default)]
pub struct Encoder {
    before: Vec<PreviousPart>,
}

impl Encoder {
    /// The frame of a document; a key frame depends on no other.
    pub fn frame(&mut self, parts: &[Part], key: bool) -> Vec<u8> {
        if key {
            self.before.clear();
        }
        let place: HashMap<&str, usize> =
            self.before.iter().enumerate().map(|(at, part)| (part.key.as_str(), at)).collect();
        let (mut out, mut next, mut same) = (Vec::new(), 0, 0);
        let mut parts_now = Vec::with_capacity(parts.len());
        for part in parts {
            let Template { template, numbers } = template::split(&part.json);
            let now = PreviousPart { key: part.key.clone(), template, numbers };
            let at = place.get(part.key.as_str()).copied().filter(|at| *at >= next);
            let before = at.map(|at| &self.before[at]).filter(|before| before.template == now.template);
            match (at, before) {
                (Some(at), Some(before)) => {
                    if at > next || before.numbers != now.numbers {
                        flush(&mut out, &mut same);
                    }
                    if at > next {
                        out.push(GONE);
                        varint::put(&mut out, (at - next) as u64);
                    }
                    if before.numbers == now.numbers {
                        same += 1;
                    } else {
                        out.push(CHANGED);
                        number::put_changes(&mut out, &before.numbers, &now.numbers);
                    }
                    next = at + 1;
                }
                _ => {
                    flush(&mut out, &mut same);
                    out.push(NEW);
                    varint::put_slice(&mut out, now.key.as_bytes());
                    varint::put_slice(&mut out, &now.template);
                    now.numbers.iter().for_each(|number| number.put(&mut out));
                }
            }
            parts_now.push(now);
        }
        flush(&mut out, &mut same);
        self.before = parts_now;
        out
    }
}

fn flush(out: &mut Vec<u8>, same: &mut u64) {
    if *same > 0 {
        out.push(SAME);
        varint::put(out, *same);
        *same = 0;
    }
}

/// Reads frames, in the order in which they were made. After an error, only a key frame makes sense.
#[derive(Debug, Default)]
pub struct Decoder {
    before: Vec<PreviousPart>,
}

impl Decoder {
    /// Takes a frame; [`Self::parts`] gives the document.
    ///
    /// # Errors
    /// [`InvalidFrame`] for anything that [`Encoder::frame`] does not make after the frames before, and for more than [`MAX_DOCUMENT`].
    pub fn frame(&mut self, bytes: &[u8], key: bool) -> Result<(), InvalidFrame> {
        let mut before = std::mem::take(&mut self.before).into_iter();
        if key {
            before = Vec::new().into_iter();
        }
        let mut bytes = Bytes(bytes);
        let (mut parts_now, mut size) = (Vec::new(), 0);
        while let Some(what) = bytes.byte() {
            let first_new = parts_now.len();
            match what {
                SAME => {
                    let count = bytes.length(before.len())?;
                    parts_now.extend(before.by_ref().take(count));
                }
                GONE => {
                    let count = bytes.length(before.len())?;
                    before.by_ref().take(count).for_each(drop);
                }
                CHANGED => {
                    let mut part = before.next().ok_or(InvalidFrame)?;
                    number::take_changes(&mut bytes, &mut part.numbers)?;
                    parts_now.push(part);
                }
                NEW => {
                    let key = String::from_utf8(bytes.slice()?.to_vec()).map_err(|_| InvalidFrame)?;
                    let template = bytes.slice()?.to_vec();
                    std::str::from_utf8(&template).map_err(|_| InvalidFrame)?;
                    let count = template.iter().filter(|byte| **byte == template::HOLE).count();
                    let numbers = (0..count).map(|_| Number::take(&mut bytes)).collect::<Result<_, _>>()?;
                    parts_now.push(PreviousPart { key, template, numbers });
                }
                _ => return Err(InvalidFrame),
            }
            size += parts_now[first_new..].iter().map(PreviousPart::allocated_bytes).sum::<usize>();
            if size > MAX_DOCUMENT {
                return Err(InvalidFrame);
            }
        }
        self.before = parts_now;
        Ok(())
    }

    /// The document of the last frame.
    pub fn parts(&self) -> Vec<Part> {
        self.wanted(|_| true)
    }

    /// The parts of it whose keys are wanted; they are asked for in their order.
    pub fn wanted(&self, mut is_wanted: impl FnMut(&str) -> bool) -> Vec<Part> {
        let part = |part: &PreviousPart| Part {
            key: part.key.clone(),
            json: template::join(&part.template, &part.numbers),
        };
        self.before.iter().filter(|part| is_wanted(&part.key)).map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn part(key: &str, json: &str) -> Part {
        Part { key: key.into(), json: json.into() }
    }

    fn same(a: &Value, b: &Value) -> bool {
        match (a, b) {
            (Value::Number(a), Value::Number(b)) => {
                let (x, y) = (a.as_f64().unwrap(), b.as_f64().unwrap());
                a == b || (a.is_f64() && (x - y).abs() <= x.abs() * 1e-6)
            }
            (Value::Array(a), Value::Array(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
            }
            (Value::Object(a), Value::Object(b)) => {
                a.len() == b.len() && a.iter().all(|(k, v)| b.get(k).is_some_and(|w| same(v, w)))
            }
            (a, b) => a == b,
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (0u64..5).prop_map(Value::from),
            any::<f64>()
                .prop_filter("finite", |n| n.is_finite() && (*n == 0.0 || n.abs() > 1e-30))
                .prop_map(Value::from),
            ".*".prop_map(Value::from),
            "[0-9\"\\\\-]{0,5}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 20, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z0-9]{0,3}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn whatever_comes_and_goes_is_read_back(
            documents in prop::collection::vec((any::<bool>(), prop::collection::btree_map("[a-f]", value(), 0..6)), 1..8)
        ) {
            let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
            for (n, (key, document)) in documents.iter().enumerate() {
                let parts: Vec<Part> = document.iter().map(|(key, value)| part(key, &value.to_string())).collect();
                let key = *key || n == 0;
                let frame = encoder.frame(&parts, key);
                decoder.frame(&frame, key).unwrap();
                let back = decoder.parts();
                prop_assert_eq!(back.len(), parts.len());
                for (part, back) in parts.iter().zip(back) {
                    prop_assert_eq!(&part.key, &back.key);
                    let (a, b): (Value, Value) = (serde_json::from_str(&part.json).unwrap(), serde_json::from_str(&back.json).unwrap());
                    prop_assert!(same(&a, &b), "{} became {}", part.json, back.json);
                }
            }
        }

        #[test]
        fn arbitrary_bytes_are_refused_or_read_and_never_panic(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 1..4)) {
            let mut decoder = Decoder::default();
            for frame in frames {
                let _ = decoder.frame(&frame, false);
                let _ = decoder.parts();
            }
        }
    }

    #[test]
    fn what_did_not_change_costs_nothing_and_a_number_that_did_costs_its_difference() {
        let mut encoder = Encoder::default();
        let document = |used: u64| -> Vec<Part> {
            (0..500)
                .map(|n| {
                    part(&n.to_string(), &format!("{{\"id\":\"{n}\",\"used\":{}}}", used * u64::from(n == 7)))
                })
                .collect()
        };
        let whole = encoder.frame(&document(1_000_000), true).len();
        assert!(whole > 5_000, "{whole}");
        assert_eq!(encoder.frame(&document(1_000_000), false).len(), 3);
        assert_eq!(encoder.frame(&document(1_000_010), false).len(), 9);
    }

    #[test]
    fn frames_that_are_small_in_a_file_add_up_to_no_more_than_a_document() {
        let mut decoder = Decoder::default();
        let mut is_taken = |kept: u64| {
            let mut frame = vec![SAME];
            varint::put(&mut frame, kept);
            frame.extend([NEW, 0]);
            varint::put_slice(&mut frame, &vec![b'x'; MAX_DOCUMENT / 8]);
            decoder.frame(&frame, kept == 0).is_ok()
        };
        assert_eq!((0..9).take_while(|kept| is_taken(*kept)).count(), 7);
        // Parts of three bytes each that say nothing.
        let many = [NEW, 0, 0].repeat(MAX_DOCUMENT / size_of::<PreviousPart>() + 1);
        assert_eq!(Decoder::default().frame(&many, true), Err(InvalidFrame));
    }

    #[test]
    fn parts_that_come_and_go_in_the_middle_disturb_no_others() {
        let mut encoder = Encoder::default();
        let mut decoder = Decoder::default();
        for keys in ["abcd", "acd", "axcd", "dcba", ""] {
            let parts: Vec<Part> = keys.chars().map(|key| part(&key.to_string(), "[1]")).collect();
            let frame = encoder.frame(&parts, false);
            decoder.frame(&frame, false).unwrap();
            assert_eq!(decoder.parts(), parts);
        }
    }
}
