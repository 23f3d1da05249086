//! Schemas in few words: what answers look like, and bodies that no type of ours describes.

use utoipa::ToSchema;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{
    AllOfBuilder, AnyOfBuilder, ArrayBuilder, ObjectBuilder, Schema, SchemaType, Type, empty,
};

/// A body, with the schemas that it refers to.
pub struct Described {
    /// Its schema.
    pub schema: RefOr<Schema>,
    /// By name, the schemas it refers to.
    pub parts: Vec<(String, RefOr<Schema>)>,
}

// === impl Described ===

impl Described {
    /// A schema that refers to no other.
    pub fn alone(schema: Schema) -> Described {
        Described { schema: RefOr::T(schema), parts: Vec::new() }
    }
}

/// The schema of a type.
pub fn of<T: ToSchema>() -> Described {
    let mut parts = Vec::new();
    T::schemas(&mut parts);
    Described { schema: T::schema(), parts }
}

/// The schema of an answer that this type writes. The schemas of its parts are inline.
pub fn answer<T: ToSchema>() -> Schema {
    match T::schema() {
        RefOr::T(schema) => schema,
        RefOr::Ref(_) => anything(),
    }
}

/// The schema of a body that two types read, each its own fields.
pub fn of_both<A: ToSchema, B: ToSchema>() -> Described {
    all_of([of::<A>(), of::<B>()])
}

/// The same of three types.
pub fn of_three<A: ToSchema, B: ToSchema, C: ToSchema>() -> Described {
    all_of([of::<A>(), of::<B>(), of::<C>()])
}

/// The schema of a form (multipart/form-data): `file` is the field with the bytes of a file, and `T` reads the other fields.
pub fn form<T: ToSchema>(file: &str) -> Described {
    let mut form = of::<T>();
    if let RefOr::T(Schema::Object(object)) = &mut form.schema {
        object.properties.insert(file.to_owned(), RefOr::T(bytes()));
        object.required.push(file.to_owned());
    }
    form
}

fn all_of(types: impl IntoIterator<Item = Described>) -> Described {
    let (mut all, mut parts) = (AllOfBuilder::new(), Vec::new());
    for described in types {
        all = all.item(described.schema);
        parts.extend(described.parts);
    }
    Described { schema: RefOr::T(Schema::AllOf(all.build())), parts }
}

/// A value of any kind.
pub fn anything() -> Schema {
    empty()
}

/// A string.
pub fn text() -> Schema {
    kind(Type::String)
}

/// The bytes of a file.
fn bytes() -> Schema {
    let text = ObjectBuilder::new().schema_type(SchemaType::Type(Type::String));
    Schema::Object(text.content_media_type("application/octet-stream").build())
}

/// A whole number.
pub fn integer() -> Schema {
    kind(Type::Integer)
}

/// An id of a token.
pub fn token_id() -> Schema {
    let whole = ObjectBuilder::new().schema_type(SchemaType::Type(Type::Integer));
    Schema::Object(whole.minimum(Some(0)).maximum(Some(u32::MAX)).build())
}

/// A number.
pub fn number() -> Schema {
    kind(Type::Number)
}

/// True or false.
pub fn flag() -> Schema {
    kind(Type::Boolean)
}

/// This, or null.
pub fn nullable(schema: Schema) -> Schema {
    any_of([schema, kind(Type::Null)])
}

/// A list of these.
pub fn list(item: Schema) -> Schema {
    Schema::Array(ArrayBuilder::new().items(RefOr::T(item)).build())
}

/// A list of so many of these.
pub fn some(item: Schema, least: usize, most: usize) -> Schema {
    Schema::Array(ArrayBuilder::new().items(RefOr::T(item)).min_items(Some(least)).max_items(Some(most)).build())
}

/// One of these.
pub fn any_of(schemas: impl IntoIterator<Item = Schema>) -> Schema {
    any_of_refs(schemas.into_iter().map(RefOr::T))
}

/// One of these, some of which may be references.
pub fn any_of_refs(schemas: impl IntoIterator<Item = RefOr<Schema>>) -> Schema {
    Schema::AnyOf(schemas.into_iter().fold(AnyOfBuilder::new(), AnyOfBuilder::item).build())
}

/// An object of any members.
pub fn plain() -> Schema {
    object([])
}

/// An object with these members, and perhaps others.
pub fn object<const N: usize>(members: [(&str, Schema); N]) -> Schema {
    object_with(members, [])
}

/// An object with members that are always there, and some that need not be.
pub fn object_with<const N: usize, const M: usize>(
    members: [(&str, Schema); N],
    optional: [(&str, Schema); M],
) -> Schema {
    let builder = ObjectBuilder::new().schema_type(SchemaType::Type(Type::Object));
    let builder = members.into_iter().fold(builder, |all, (name, schema)| all.property(name, schema).required(name));
    Schema::Object(optional.into_iter().fold(builder, |all, (name, schema)| all.property(name, schema)).build())
}

fn kind(kind: Type) -> Schema {
    Schema::Object(ObjectBuilder::new().schema_type(SchemaType::Type(kind)).build())
}
