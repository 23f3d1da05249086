// Shows /openapi.json to people. Whatever the document holds gets into the page as text, never as markup.
"use strict";

const find = (id) => document.getElementById(id);

function make(name, text, ...classes) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  element.classList.add(...classes);
  return element;
}

// A schema in short: `text`, `[number]`, `{ name: text, more?: text }`.
function short(schema, parts, depth = 0) {
  if (!schema || typeof schema !== "object" || depth > 8) return "anything";
  const pad = "  ".repeat(depth + 1);
  const inner = (schema) => short(schema, parts, depth);
  if (schema.$ref) return short(parts[schema.$ref.split("/").at(-1)], parts, depth);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.allOf) {
    const all = schema.allOf.map((one) => (one.$ref ? parts[one.$ref.split("/").at(-1)] : one));
    return inner({ type: "object", properties: Object.assign({}, ...all.map((one) => one.properties)), required: all.flatMap((one) => one.required ?? []) });
  }
  const several = schema.anyOf ?? schema.oneOf;
  if (several) return [...new Set(several.map(inner))].join(depth ? " | " : "\nor ");
  const types = [schema.type].flat().filter(Boolean);
  const words = types.map((type) => {
    if (type === "array") return `[${inner(schema.items)}]`;
    if (type !== "object") return { string: "text", boolean: "true | false" }[type] ?? type;
    const members = Object.entries(schema.properties ?? {});
    if (members.length === 0) return "{ … }";
    const line = ([name, member]) => {
      const note = member.description ? `  // ${member.description.split("\n").join(" ")}` : "";
      return `${pad}${name}${schema.required?.includes(name) ? "" : "?"}: ${short(member, parts, depth + 1)},${note}`;
    };
    return `{\n${members.map(line).join("\n")}\n${"  ".repeat(depth)}}`;
  });
  return words.join(" | ") || "anything";
}

function content(title, place, parts) {
  const schema = place?.content?.["application/json"]?.schema ?? place?.content?.["multipart/form-data"]?.schema;
  return schema ? [make("h3", title), make("pre", short(schema, parts))] : [];
}

// The parameters of the query, or the headers.
function parameters(title, place, operation, parts) {
  const own = (operation.parameters ?? []).filter((parameter) => parameter.in === place);
  const line = ({ name, description, schema }) => `${name}: ${short(schema, parts)}${description ? `  // ${description.split("\n").join(" ")}` : ""}`;
  return own.length ? [make("h3", title), make("pre", own.map(line).join("\n"))] : [];
}

function route(path, verb, operation, parts) {
  const details = make("details");
  details.dataset.path = path;
  const summary = make("summary");
  summary.append(make("span", verb.toUpperCase(), "verb"), make("code", path), make("span", `  ${operation.summary ?? ""}`, "faint"));
  details.append(summary);
  // Written when it is opened: the document is long.
  details.addEventListener("toggle", () => {
    if (details.childElementCount > 1) return;
    details.append(
      ...parameters("Query", "query", operation, parts),
      ...parameters("Headers", "header", operation, parts),
      ...content(operation.requestBody?.content?.["multipart/form-data"] ? "Form" : "Body", operation.requestBody, parts),
      ...content("Answer", operation.responses?.["200"], parts),
      ...content("Answer 202", operation.responses?.["202"], parts),
      ...content("Refusal", operation.responses?.default, parts),
    );
    if (details.childElementCount === 1) details.append(make("p", "Neither body nor answer is JSON of a fixed shape.", "faint"));
  });
  return details;
}

function show(api) {
  const groups = new Map();
  for (const [path, item] of Object.entries(api.paths)) {
    for (const verb of ["get", "post", "delete"]) {
      const operation = item[verb];
      if (!operation) continue;
      const group = operation.tags?.[0] ?? "";
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(route(path, verb, operation, api.components?.schemas ?? {}));
    }
  }
  for (const [group, routes] of groups) {
    const section = make("section");
    section.append(make("h2", group), ...routes);
    find("routes").append(section);
  }
  find("state").textContent = `${[...groups.values()].flat().length} routes, version ${api.info.version}`;
}

find("filter").addEventListener("input", () => {
  const wanted = find("filter").value.trim().toLowerCase();
  for (const details of document.querySelectorAll("details")) details.hidden = !details.dataset.path.toLowerCase().includes(wanted);
  for (const section of document.querySelectorAll("section")) section.hidden = ![...section.querySelectorAll("details")].some((details) => !details.hidden);
});

fetch("openapi.json").then((response) => response.json()).then(show, (error) => { find("state").textContent = `no document: ${error.message}`; });
