//! The structures and relations that a request asks for, in the form of GLiNER2's schemas.

use indexmap::IndexMap;
use serde::Deserialize;

use super::MOST_LABELS;
use crate::TextError;

/// The parameters that hold them.
pub(crate) const STRUCTURES: &str = "structures";
pub(crate) const RELATIONS: &str = "relations";

/// Most bytes of each parameter.
const LONGEST: usize = 64 << 10;

/// The forms of the parameters, for messages.
const EXPECTED_STRUCTURES: &str = r#"a JSON object of structures, as {"product": {"fields": [{"name": "price", "dtype": "str"}, {"name": "size", "choices": ["small", "large"]}]}}"#;
const EXPECTED_RELATIONS: &str =
    r#"a JSON array of relations, as ["works_for"], or an object of relations with their descriptions"#;

/// The fields of a relation.
pub const ROLES: [&str; 2] = ["head", "tail"];

/// Most records of one structure or relation in a row: the model counts from 0 to 19.
pub const MOST_RECORDS: usize = 19;

/// The structures and relations of a request, in its order: the values of parameters `structures` and `relations`.
///
/// ```
/// use trireme_text::Records;
///
/// let product = r#"{"product": {"fields": [{"name": "name", "dtype": "str"}, {"name": "size", "choices": ["small", "large"]}]}}"#;
/// let read = Records::parse(Some(product), Some(r#"["sold_by"]"#))?;
/// let fields: Vec<_> = read.structures()[0].fields().iter().map(|field| (field.name(), field.is_list())).collect();
/// assert_eq!(fields, [("name", false), ("size", true)]);
/// assert_eq!((read.relations()[0].name(), read.fields()), ("sold_by", 4));
/// assert_eq!(read.words_of_choices().join(" "), "( product: size ( small | large ) )");
/// # Ok::<(), trireme_text::TextError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Records {
    structures: Vec<Structure>,
    relations: Vec<Relation>,
}

/// A kind of record: its name and its fields.
#[derive(Clone, Debug, PartialEq)]
pub struct Structure {
    name: String,
    fields: Vec<Field>,
}

/// A field of a structure.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Field {
    name: String,
    #[serde(default)]
    dtype: FieldType,
    /// The values of which the field has some; without them its values are spans of the text.
    #[serde(default)]
    choices: Option<Vec<String>>,
    /// A description of the field, in words.
    #[serde(default)]
    description: Option<String>,
    /// The score from which a value counts.
    #[serde(default)]
    threshold: Option<f32>,
}

/// How many values a field has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FieldType {
    /// The best one.
    Str,
    /// All.
    #[default]
    List,
}

/// A relation between two spans of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Relation {
    name: String,
    settings: RelationSettings,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct RelationSettings {
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    threshold: Option<f32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StructureJson {
    fields: Vec<Field>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected an array of names, or an object of names with a description, or with an object of description and threshold"
)]
enum RelationsJson {
    Named(Vec<String>),
    Described(IndexMap<String, RelationJson>),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a description, or an object of description and threshold")]
enum RelationJson {
    Description(Option<String>),
    Settings(RelationSettings),
}

// === impl Records ===

impl Records {
    /// Reads the parameters that a request has: `structures`, a JSON object of structures with an array of `fields` (`name` and, if wanted, `dtype`,
    /// `choices`, `description`, `threshold`), and `relations`, a JSON array of names or an object of names with descriptions, as `Schema.from_dict` of
    /// gliner2 reads them.
    ///
    /// # Errors
    /// One has another form, nothing in it, a name that is empty or there twice, more than [`MOST_LABELS`] fields, or a threshold that is not from
    /// 0 to 1.
    pub fn parse(structures: Option<&str>, relations: Option<&str>) -> Result<Records, TextError> {
        let read = Records {
            structures: structures.map(structures_of).transpose()?.unwrap_or_default(),
            relations: relations.map(relations_of).transpose()?.unwrap_or_default(),
        };
        let of_structures: usize = read.structures.iter().map(|structure| structure.fields.len()).sum();
        match MOST_LABELS {
            most if of_structures > most => Err(TextError::TooManyLabels { parameter: STRUCTURES, most }),
            most if read.fields() > most => Err(TextError::TooManyLabels { parameter: RELATIONS, most }),
            _ => Ok(read),
        }
    }

    /// The structures.
    pub fn structures(&self) -> &[Structure] {
        &self.structures
    }

    /// The relations.
    pub fn relations(&self) -> &[Relation] {
        &self.relations
    }

    /// The fields of all structures, and two for each relation: as many scores a span has in each record.
    pub fn fields(&self) -> usize {
        self.structures.iter().map(|structure| structure.fields.len()).sum::<usize>()
            + ROLES.len() * self.relations.len()
    }

    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.structures.is_empty() && self.relations.is_empty()
    }

    /// The choices of fields, with their parentheses, as words that a row has before the words of its text. The score of a choice is that of its word.
    pub fn words_of_choices(&self) -> Vec<String> {
        self.structures.iter().flat_map(Structure::words_of_choices).collect()
    }
}

/// The structures of the parameter.
fn structures_of(text: &str) -> Result<Vec<Structure>, TextError> {
    let read: IndexMap<String, StructureJson> = read(text, STRUCTURES, EXPECTED_STRUCTURES)?;
    let structures = read.into_iter().map(|(name, StructureJson { fields })| Structure { name, fields });
    let structures: Vec<_> = structures.collect();
    let fault =
        |structure: &Structure| structure.fault().map(|fault| format!("structure '{}' {fault}", structure.name));
    checked(structures, STRUCTURES, EXPECTED_STRUCTURES, fault)
}

/// The relations of the parameter.
fn relations_of(text: &str) -> Result<Vec<Relation>, TextError> {
    let relations: Vec<Relation> = match read(text, RELATIONS, EXPECTED_RELATIONS)? {
        RelationsJson::Named(names) => {
            names.into_iter().map(|name| Relation { name, settings: RelationSettings::default() }).collect()
        }
        RelationsJson::Described(described) => {
            let relation = |(name, described): (String, RelationJson)| Relation { name, settings: described.into() };
            described.into_iter().map(relation).collect()
        }
    };
    let mut names: Vec<&str> = relations.iter().map(Relation::name).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        let reason = format!("has two relations '{}': give each a name of its own", twice[0]);
        return Err(TextError::Labels { parameter: RELATIONS, reason });
    }
    let fault = |relation: &Relation| {
        let fault = relation.name.trim().is_empty().then(|| "has no name".to_owned());
        fault
            .or_else(|| threshold_fault(relation.settings.threshold))
            .map(|fault| format!("relation '{}' {fault}", relation.name))
    };
    checked(relations, RELATIONS, EXPECTED_RELATIONS, fault)
}

/// The JSON of a parameter.
fn read<'t, T: Deserialize<'t>>(text: &'t str, parameter: &'static str, expected: &str) -> Result<T, TextError> {
    if text.len() > LONGEST {
        return Err(TextError::LongText { parameter, bytes: text.len(), most: LONGEST });
    }
    let wrong =
        |error: serde_json::Error| TextError::Labels { parameter, reason: format!("is not {expected}: {error}") };
    serde_json::from_str(text).map_err(wrong)
}

/// The records, if there are any and none has a fault.
fn checked<T>(
    records: Vec<T>,
    parameter: &'static str,
    expected: &str,
    fault: impl Fn(&T) -> Option<String>,
) -> Result<Vec<T>, TextError> {
    let nothing = || records.is_empty().then(|| format!("is empty, expected {expected}"));
    match records.iter().find_map(fault).or_else(nothing) {
        Some(reason) => Err(TextError::Labels { parameter, reason }),
        None => Ok(records),
    }
}

/// Why a threshold is none.
fn threshold_fault(threshold: Option<f32>) -> Option<String> {
    let wrong = threshold.filter(|number| !(0.0..=1.0).contains(number))?;
    Some(format!("has threshold {wrong}, expected a number from 0 to 1"))
}

// === impl Structure ===

impl Structure {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its fields.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The text before its fields in a row: its name, with the descriptions of fields.
    pub(super) fn heading(&self) -> String {
        let descriptions = self.fields.iter().filter_map(|field| Some((&field.name, field.description.as_ref()?)));
        let told = descriptions.filter(|(_, description)| !description.is_empty());
        told.fold(self.name.clone(), |heading, (name, description)| {
            format!("{heading} [DESCRIPTION] {name}: {description}")
        })
    }

    /// Its choices in parentheses, if it has any.
    fn words_of_choices(&self) -> Vec<String> {
        let mut words = Vec::new();
        for field in &self.fields {
            let Some(choices) = &field.choices else { continue };
            match words.is_empty() {
                true => words.extend(["(".to_owned(), format!("{}:", self.name)]),
                false => words.push(",".to_owned()),
            }
            words.extend([field.name.clone(), "(".to_owned()]);
            for (at, choice) in choices.iter().enumerate() {
                words.extend((at > 0).then(|| "|".to_owned()));
                words.push(choice.clone());
            }
            words.push(")".to_owned());
        }
        if !words.is_empty() {
            words.push(")".to_owned());
        }
        words
    }

    /// Why nothing can be asked for by it.
    fn fault(&self) -> Option<String> {
        if self.name.trim().is_empty() {
            return Some("has no name".to_owned());
        }
        if self.fields.is_empty() {
            return Some("has no field".to_owned());
        }
        self.fields.iter().enumerate().find_map(|(at, field)| {
            if field.name.trim().is_empty() || self.fields[..at].iter().any(|other| other.name == field.name) {
                return Some(format!("has field '{}', expected names that are not empty, each once", field.name));
            }
            field.fault().map(|fault| format!("has field '{}', which {fault}", field.name))
        })
    }
}

// === impl Field ===

impl Field {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it has all values, not the best one alone.
    pub fn is_list(&self) -> bool {
        self.dtype == FieldType::List
    }

    /// The values of which it has some; without them its values are spans of the text.
    pub fn choices(&self) -> Option<&[String]> {
        self.choices.as_deref()
    }

    /// The score from which a value counts, where the request gives the field one.
    pub fn threshold(&self) -> Option<f32> {
        self.threshold
    }

    fn fault(&self) -> Option<String> {
        match self.choices.as_deref() {
            Some([]) => return Some("has no choice".to_owned()),
            Some(choices) if choices.iter().any(|choice| choice.trim().is_empty()) => {
                return Some("has a choice without a letter".to_owned());
            }
            _ => {}
        }
        threshold_fault(self.threshold)
    }
}

// === impl Relation ===

impl Relation {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The score from which its spans count, where the request gives it one.
    pub fn threshold(&self) -> Option<f32> {
        self.settings.threshold
    }

    /// The text before its fields in a row: its name, with its description.
    pub(super) fn heading(&self) -> String {
        match self.settings.description.as_deref().unwrap_or_default() {
            "" => self.name.clone(),
            description => format!("{}: {description}", self.name),
        }
    }
}

// === impl RelationSettings ===

impl From<RelationJson> for RelationSettings {
    fn from(json: RelationJson) -> RelationSettings {
        match json {
            RelationJson::Description(description) => RelationSettings { description, threshold: None },
            RelationJson::Settings(settings) => settings,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_keep_their_order_and_what_stands_before_fields_is_the_librarys() {
        let structures = r#"{"z": {"fields": [{"name": "b", "description": "first"}, {"name": "a", "description": "", "dtype": "str", "threshold": 0.25}]},
            "a": {"fields": [{"name": "size", "choices": ["s", "l"]}, {"name": "x"}, {"name": "kind", "choices": ["k"]}]},
            "b": {"fields": [{"name": "size", "choices": ["t"]}]}}"#;
        let read =
            Records::parse(Some(structures), Some(r#"{"r": "of what", "q": null, "p": {"threshold": 0.7}}"#)).unwrap();
        let headings: Vec<_> = read.structures().iter().map(Structure::heading).collect();
        assert_eq!(headings, ["z [DESCRIPTION] b: first", "a", "b"]);
        let headings: Vec<_> = read.relations().iter().map(Relation::heading).collect();
        assert_eq!(headings, ["r: of what", "q", "p"]);
        assert_eq!(read.relations()[2].threshold(), Some(0.7));
        let fields: Vec<_> =
            read.structures()[0].fields().iter().map(|field| (field.is_list(), field.threshold())).collect();
        assert_eq!(fields, [(true, None), (false, Some(0.25))]);
        assert_eq!(read.fields(), 2 + 3 + 1 + 6);
        assert_eq!(read.words_of_choices().join(" "), "( a: size ( s | l ) , kind ( k ) ) ( b: size ( t ) )");
        assert!(Records::parse(None, None).unwrap().is_empty());
    }

    #[test]
    fn other_forms_are_refused_by_name() {
        for (wrong, why) in [
            ("", "is not a JSON object of structures"),
            ("{}", "is empty, expected a JSON object of structures"),
            (r#"{"s": ["a"]}"#, "is not a JSON object of structures"),
            (r#"{"s": {"fields": []}}"#, "structure 's' has no field"),
            (r#"{" ": {"fields": [{"name": "a"}]}}"#, "has no name"),
            (r#"{"s": {"fields": [{"name": "a"}], "mode": "natural"}}"#, "unknown field `mode`"),
            (r#"{"s": {"fields": [{"name": "a"}, {"name": "a"}]}}"#, "has field 'a', expected names"),
            (r#"{"s": {"fields": [{"name": "a", "dtype": "int"}]}}"#, "unknown variant `int`"),
            (r#"{"s": {"fields": [{"name": "a", "choices": []}]}}"#, "field 'a', which has no choice"),
            (r#"{"s": {"fields": [{"name": "a", "choices": [" "]}]}}"#, "a choice without a letter"),
            (r#"{"s": {"fields": [{"name": "a", "threshold": 2}]}}"#, "threshold 2, expected a number from 0 to 1"),
        ] {
            let error = Records::parse(Some(wrong), None).unwrap_err().to_string();
            assert!(error.starts_with("parameter 'structures': ") && error.contains(why), "{wrong}: {error}");
        }
        for (wrong, why) in [
            ("works_for", "is not a JSON array of relations"),
            ("[]", "is empty, expected a JSON array of relations"),
            ("[1]", "expected an array of names"),
            (r#"["a", "a"]"#, "has two relations 'a'"),
            (r#"[""]"#, "relation '' has no name"),
            (r#"{"a": {"threshold": -1}}"#, "relation 'a' has threshold -1"),
        ] {
            let error = Records::parse(None, Some(wrong)).unwrap_err().to_string();
            assert!(error.starts_with("parameter 'relations': ") && error.contains(why), "{wrong}: {error}");
        }
    }

    #[test]
    fn fields_are_counted() {
        let of = |fields: usize| {
            let fields: Vec<_> = (0..fields).map(|at| serde_json::json!({"name": format!("f{at}")})).collect();
            serde_json::json!({"s": {"fields": fields}}).to_string()
        };
        let refused =
            |structures: &str, relations| Records::parse(Some(structures), relations).unwrap_err().to_string();
        assert_eq!(refused(&of(257), None), "parameter 'structures' has more than 256 labels: send several requests");
        let one = Some(r#"["r"]"#);
        assert_eq!(refused(&of(255), one), "parameter 'relations' has more than 256 labels: send several requests");
        assert!(Records::parse(Some(&of(254)), one).is_ok());
    }
}
