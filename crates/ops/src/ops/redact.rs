//! `redact`: texts in which the place of each entity has its label in brackets, from the entities of texts `[rows]`, as ops
//! `entities` and `spans` give them. `Wanjiru is here.` becomes `[PER] is here.`
//!
//! It takes the texts (TYPE_STRING) besides the data. Entities that overlap are one place, which has the label of the first of them.

use ndarray::{Array1, Ix1};
use serde::Deserialize;
use trireme_inference::InferError;
use trireme_text::texts_of;

use super::op::{Op, OpEntry, Resources, no_argument};
use crate::inputs::Side;
use crate::{Form, Signature, Value};

/// The op in the table.
pub const ENTRY: OpEntry = OpEntry {
    name: "redact",
    usage: "redact",
    doc: "texts with the labels of entities in their places: entities [rows] to [rows]",
    inputs: &["TEXT"],
    embeds: false,
    reduces: false,
    build,
};

struct Redact;

/// The fields that are read of an entity. Places count characters.
#[derive(Deserialize)]
struct Entity {
    #[serde(alias = "entity")]
    entity_group: String,
    start: usize,
    end: usize,
}

fn build(argument: Option<&str>, resources: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    no_argument(argument)?;
    match resources.inputs.texts {
        Some(_) => Ok(Box::new(Redact)),
        None => Err("needs an input that the model does not declare: the texts (TYPE_STRING)".to_owned()),
    }
}

// === impl Redact ===

impl Op for Redact {
    fn signature(&self, input: &Signature) -> Result<Signature, String> {
        input.expect(Form::Texts, 1..=1).cloned()
    }

    fn apply<'a>(&self, value: Value<'a>, side: &Side<'_>) -> Result<Value<'a>, InferError> {
        let Value::Texts(entities) = value else { return Err(InferError::internal("redact takes entities")) };
        let entities = entities.into_dimensionality::<Ix1>();
        let entities = entities.map_err(|_| InferError::internal("redact takes entities of rank 1"))?;
        let missing = || InferError::invalid_arg("the input of texts is missing");
        let texts = texts_of(side.texts.ok_or_else(missing)?)?;
        if texts.len() != entities.len() {
            let (texts, rows) = (texts.len(), entities.len());
            return Err(InferError::invalid_arg(format!(
                "got {texts} texts, expected one for each of {rows} rows of entities"
            )));
        }
        let row = |(index, (entities, text)): (usize, (&String, &&str))| {
            let found: Vec<Entity> = serde_json::from_str(entities).map_err(|error| {
                InferError::invalid_arg(format!(
                    "row {index} of entities is not a JSON array of objects with entity_group, start and end: {error}"
                ))
            })?;
            Ok(redacted(text, found))
        };
        let redacted: Vec<String> =
            entities.iter().zip(&texts).enumerate().map(row).collect::<Result<_, InferError>>()?;
        Ok(Value::Texts(Array1::from(redacted).into_dyn()))
    }
}

fn redacted(text: &str, mut entities: Vec<Entity>) -> String {
    entities.sort_by_key(|entity| entity.start);
    let mut redacted = String::with_capacity(text.len());
    let mut entities = entities.iter().peekable();
    let mut hidden = 0;
    for (at, character) in text.chars().enumerate() {
        while let Some(entity) = entities.next_if(|entity| entity.start <= at) {
            if at >= hidden && entity.end > at {
                redacted.extend(["[", &entity.entity_group, "]"]);
            }
            hidden = hidden.max(entity.end);
        }
        if at >= hidden {
            redacted.push(character);
        }
    }
    redacted
}

#[cfg(test)]
mod tests {
    use trireme_inference::Tensor;

    use super::*;

    fn redact(text: &str, entities: &str) -> Result<String, String> {
        let texts = Tensor::from_bytes_elements("TEXT", [1], &[text]).unwrap();
        let side = Side { texts: Some(&texts), ..Side::default() };
        let value = Value::Texts(Array1::from(vec![entities.to_owned()]).into_dyn());
        match Redact.apply(value, &side).map_err(|error| error.message)? {
            Value::Texts(texts) => Ok(texts[[0]].clone()),
            other => panic!("{:?}", other.form()),
        }
    }

    #[test]
    fn labels_stand_in_the_places_of_entities() {
        let entities = r#"[{"entity_group": "LOC", "score": 0.9, "word": "京都", "start": 5, "end": 7},
            {"entity": "PER", "index": 1, "start": 0, "end": 2}]"#;
        assert_eq!(redact("Né à 京都.", entities).unwrap(), "[PER] à [LOC].");
        assert_eq!(redact("Né à 京都.", "[]").unwrap(), "Né à 京都.");
        // Entities within others and beside them, as nested ones are.
        let nested = r#"[{"entity_group": "A", "start": 0, "end": 4}, {"entity_group": "B", "start": 2, "end": 6}, {"entity_group": "C", "start": 6, "end": 7}]"#;
        assert_eq!(redact("abcdefgh", nested).unwrap(), "[A][C]h");
    }

    #[test]
    fn other_rows_are_refused_by_number() {
        let refused = redact("a", r#"{"start": 1}"#).unwrap_err();
        assert!(refused.starts_with("row 0 of entities is not a JSON array of objects"), "{refused}");
        assert!(redact("a", r#"[{"entity_group": "A", "start": -1, "end": 1}]"#).is_err());
    }
}
