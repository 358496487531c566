// The API tab: the operations of /openapi.json, and the current query as a command to copy.

import { key } from "./api.js";
import { copyButton, el, factsOf, tableOf } from "./dom.js";

const METHODS = ["get", "post", "put", "delete"];
const DEEPEST = 4; // levels of nested objects that are shown

export function apiOf(document_, query) {
  const operations = Object.entries(document_.paths ?? {}).flatMap(([path, item]) =>
    METHODS.filter((method) => item[method]).map((method) => ({ path, method, ...item[method] })),
  );
  operations.sort((a, b) => rank(a) - rank(b));
  const command = el("pre", { tabindex: "0", class: "curl" }, curlOf(query));
  return [
    el("h2", {}, "API"),
    document_.info?.description && el("p", { class: "soft" }, document_.info.description),
    el("h3", {}, "What you ask now, as a command"),
    command,
    el(
      "p",
      {},
      copyButton("Copy command", () => curlOf(query)),
    ),
    el("h3", {}, "Operations"),
    ...operations.map((operation) => operationOf(operation, document_)),
    !key() && el("p", { class: "soft small" }, "From ", el("a", { href: "openapi.json" }, "openapi.json"), "."),
  ].filter(Boolean);
}

// What one comes for first; the sort keeps the server's order otherwise.
const FIRST = [/^\/v1\/(predict|text)/, /^\/v1\//, /./];
const rank = ({ path }) => FIRST.findIndex((pattern) => pattern.test(path));

// For a shell: a single quote inside single quotes is written '\''. The key itself is never printed.
export function curlOf({ path, body }) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const lines = [
    `curl -s ${new URL(path, document.baseURI).href.split("#")[0]}`,
    "-H 'Content-Type: application/json'",
  ];
  if (key()) lines.push('-H "Authorization: Bearer $SUPERBLOOM_KEY"');
  lines.push(`-d ${quoted(JSON.stringify(body))}`);
  return lines.join(" \\\n  ");
}

function operationOf({ method, path, summary, description, parameters, requestBody, responses }, root) {
  const given = (parameters ?? []).map((parameter) => resolve(parameter, root));
  const fields = [
    ...given.map(({ name, in: where, required, description: text, schema }) => ({
      name,
      schema,
      text,
      note: required ? `in ${where}, required` : `in ${where}`,
    })),
    ...fieldsOf(bodyOf(requestBody, root), root),
  ];
  const good = Object.entries(responses ?? {}).find(([status]) => status.startsWith("2"))?.[1];
  const answered = fieldsOf(bodyOf(good, root), root).map((field) => ({ ...field, note: null })); // all are there
  const codes = Object.entries(responses ?? {}).map(([status, one]) => [status, coded(resolve(one, root).description)]);
  return el(
    "details",
    { class: "operation" },
    el(
      "summary",
      {},
      el("code", { class: "method" }, method.toUpperCase()),
      " ",
      el("code", {}, path),
      " ",
      el("span", { class: "soft" }, coded(description ?? summary)),
    ),
    fields.length > 0 && fieldsTable(`What ${path} takes`, "Field", fields, root),
    answered.length > 0 && fieldsTable(`What ${path} answers`, "Answer", answered, root),
    factsOf(codes),
  );
}

// `code` in descriptions.
const coded = (text) => (text ?? "").split("`").map((part, i) => (i % 2 ? el("code", {}, part) : part));

function resolve(node, root) {
  if (!node?.$ref) return node ?? {};
  return (
    node.$ref
      .slice(2)
      .split("/")
      .reduce((at, part) => at?.[part], root) ?? {}
  );
}

const bodyOf = (holder, root) => resolve(holder, root).content?.["application/json"]?.schema;

// The object within a schema, if there is one: itself, of a list, or of several choices; and how its name is written.
function within(schema, root, path = "") {
  const found = resolve(schema, root);
  if (found.properties) return { found, path };
  if (found.items) return within(found.items, root, `${path}[]`);
  return (found.anyOf ?? []).map((each) => within(each, root, path)).find(Boolean);
}

// All fields, those of inner objects as masks[].predictions[].name.
function fieldsOf(schema, root, prefix = "", depth = 0) {
  const object = schema && depth < DEEPEST ? within(schema, root, prefix) : null;
  if (!object) return [];
  const { properties, required } = object.found;
  const before = object.path ? `${object.path}.` : "";
  return Object.entries(properties).flatMap(([name, property]) => [
    {
      name: before + name,
      schema: property,
      note: required?.includes(name) ? "required" : null,
      text: property.description,
    },
    ...fieldsOf(property, root, before + name, depth + 1),
  ]);
}

function typeOf(schema, root) {
  const name = schema?.$ref?.split("/").at(-1);
  const { type, anyOf, items, enum: values } = resolve(schema, root);
  if (anyOf) return [...new Set(anyOf.map((each) => typeOf(each, root)))].join(" or ");
  if (values) return values.map((value) => JSON.stringify(value)).join(" or ");
  if (type === "array") return `list of ${items ? typeOf(items, root) : "anything"}`;
  return name ?? (Array.isArray(type) ? type.join(" or ") : type) ?? "anything";
}

function limitsOf(schema, root) {
  const { minimum, maximum, default: usual } = { ...resolve(schema, root), ...schema };
  const parts = [];
  if (minimum !== undefined && maximum !== undefined) parts.push(`${minimum} to ${maximum}`);
  else if (minimum !== undefined) parts.push(`at least ${minimum}`);
  else if (maximum !== undefined) parts.push(`at most ${maximum}`);
  if (usual !== undefined && usual !== null && usual.length !== 0) parts.push(`else ${JSON.stringify(usual)}`);
  return parts.length ? `, ${parts.join(", ")}` : "";
}

function fieldsTable(title, first, fields, root) {
  const explained = fields.some(({ text }) => text);
  const rows = fields.map(({ name, note, schema, text }) => [
    [el("code", {}, name), note && el("span", { class: "soft small" }, ` ${note}`)],
    `${typeOf(schema, root)}${limitsOf(schema, root)}`,
    ...(explained ? [coded(text)] : []),
  ]);
  return tableOf(title, [first, "Type", ...(explained ? ["Meaning"] : [])], rows);
}
