"use strict";
// The API reference, rendered from the server's openapi.json. Nothing is loaded from other hosts.
const $ = (id) => document.getElementById(id);
const make = (tag, text = "", attributes = {}) => {
  const element = document.createElement(tag);
  element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
};
const WORDS = {
  en: {
    page: "Page", parameters: "Parameters", body: "Body", answers: "Responses", example: "Example", schemas: "Schemas",
    name: "Name", type: "Type", value: "Default", about: "Description", required: "required", code: "Status",
  },
  zh: {
    page: "页面", parameters: "参数", body: "请求体", answers: "响应", example: "示例", schemas: "数据结构",
    name: "名称", type: "类型", value: "默认值", about: "说明", required: "必填", code: "状态码",
  },
};
const state = { language: (navigator.language || "en").startsWith("zh") ? "zh" : "en", api: null, server: null };
const say = (name) => WORDS[state.language][name];
const anchor = (text) => text.replace(/[^\w]+/g, "-").replace(/^-|-$/g, "").toLowerCase();

// --- schemas as text

const refers = (schema) => schema.$ref && schema.$ref.split("/").pop();
const resolve = (schema) => (schema.$ref ? state.api.components.schemas[refers(schema)] : schema);

function type(schema) {
  if (schema.$ref) return refers(schema);
  const several = schema.anyOf || schema.oneOf;
  if (several) return several.map(type).join(" | ");
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  if (schema.type === "array") return `${schema.items ? type(schema.items) : "any"}[]`;
  return `${schema.type || "any"}${bounds(schema)}`;
}

function bounds(schema) {
  const found = [];
  if (schema.minimum !== undefined) found.push(`≥ ${schema.minimum}`);
  if (schema.exclusiveMinimum !== undefined) found.push(`> ${schema.exclusiveMinimum}`);
  if (schema.maximum !== undefined) found.push(`≤ ${schema.maximum}`);
  if (schema.exclusiveMaximum !== undefined) found.push(`< ${schema.exclusiveMaximum}`);
  if (schema.maxLength !== undefined) found.push(`≤ ${schema.maxLength} characters`);
  return found.length ? ` (${found.join(", ")})` : "";
}

function table(heads, rows) {
  const found = make("table"), head = make("tr");
  heads.forEach((name) => head.append(make("th", say(name), { scope: "col" })));
  found.append(head);
  for (const row of rows) {
    const line = make("tr");
    row.forEach((cell, place) => {
      const box = make("td");
      box.append(place === row.length - 1 ? cell : make("code", cell));
      line.append(box);
    });
    found.append(line);
  }
  const scroll = make("div", "", { class: "scroll", tabindex: 0 });
  scroll.append(found);
  return scroll;
}

function fields(schema) {
  const whole = resolve(schema), needed = whole.required || [];
  const rows = Object.entries(whole.properties || {}).map(([name, one]) => [
    name, type(one), one.default === undefined ? (needed.includes(name) ? say("required") : "") : JSON.stringify(one.default), one.description || "",
  ]);
  return rows.length ? [table(["name", "type", "value", "about"], rows)] : [];
}

// --- an example that can be pasted into a shell

const TEXT = "Hello.";
const quoted = (text) => `'${text.replace(/'/g, "'\\''")}'`;

function sample(name, schema, path) {
  const { source, target, translator, writer, reader } = state.server;
  const known = {
    source, target, q: TEXT, text: TEXT, prompt: TEXT, model: path.startsWith("/v1/") ? writer : translator, name: writer,
    inputs: Array(reader.inputs.length).fill(TEXT).join("\t"), input: TEXT, query: TEXT, documents: [TEXT, "Bye."],
    messages: [{ role: "user", content: TEXT }],
  };
  if (known[name] !== undefined) return known[name];
  if (schema.enum) return schema.enum[0];
  const one = resolve(schema.anyOf || schema.oneOf ? (schema.anyOf || schema.oneOf)[0] : schema);
  return { string: "", integer: 1, number: 1, boolean: true, array: [] }[one.type];
}

function curl(method, path, operation) {
  const words = ["curl"];
  if (state.server.key) words.push('-H "Authorization: Bearer $HEEDFUL_API_KEY"');
  const content = operation.requestBody && operation.requestBody.content["application/json"];
  if (content) {
    const whole = resolve(content.schema), needed = whole.required || [];
    const shown = Object.keys(whole.properties).filter((name) => needed.includes(name) || name === "prompt");
    const body = Object.fromEntries(shown.map((name) => [name, sample(name, whole.properties[name], path)]));
    words.push("-H 'Content-Type: application/json'", `-d ${quoted(JSON.stringify(body))}`);
  } else if (method !== "get") words.push(`-X ${method.toUpperCase()}`);
  const filled = path.replace(/\{(\w+)\}/g, (_, name) => sample(name, { type: "string" }, path));
  words.push(quoted(new URL(filled.replace(/^\//, ""), document.baseURI).href));
  return words.join(" ");
}

// --- the page

function route(method, path, operation) {
  const id = anchor(`${method} ${path}`), section = make("section", "", { class: "route", id, "aria-labelledby": `title-${id}` });
  const title = make("h3", "", { id: `title-${id}` });
  title.append(make("code", `${method.toUpperCase()} ${path}`));
  section.append(title);
  if (operation.description) operation.description.split(/\n\s*\n/).forEach((text) => section.append(make("p", text)));
  if (operation.parameters) {
    const rows = operation.parameters.map((one) => [one.name, `${type(one.schema || {})}, ${one.in}`, one.required ? say("required") : "", one.description || ""]);
    section.append(make("h4", say("parameters")), table(["name", "type", "value", "about"], rows));
  }
  if (operation.requestBody) {
    const kinds = Object.keys(operation.requestBody.content), { schema } = operation.requestBody.content[kinds[0]];
    const about = make("h4", `${say("body")}: `);
    about.append(kinds.join(", "));
    section.append(about, ...(schema.$ref && resolve(schema).description ? [make("p", resolve(schema).description)] : []), ...fields(schema));
  }
  const answers = Object.entries(operation.responses || {}).filter(([code]) => code !== "422"); // invalid requests get 400 here
  section.append(make("h4", say("answers")), table(["code", "about"], answers.map(([code, one]) => [code, one.description || ""])));
  section.append(make("h4", say("example")), make("pre", curl(method, path, operation), { tabindex: 0 }));
  return section;
}

function show() {
  document.documentElement.lang = state.language;
  for (const element of document.querySelectorAll("[data-say]")) element.textContent = say(element.dataset.say);
  $("language").textContent = state.language === "en" ? "中文" : "English";
  if (!state.api) return;
  $("version").textContent = state.api.info.version;
  const groups = new Map();
  for (const [path, methods] of Object.entries(state.api.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const group = (operation.tags || ["Heedful"])[0];
      groups.set(group, [...(groups.get(group) || []), [method, path, operation]]);
    }
  }
  const contents = make("ul"), all = [];
  for (const [group, routes] of groups) {
    const line = make("li", `${group}: `);
    routes.forEach(([method, path], place) => line.append(place ? ", " : "", make("a", `${method.toUpperCase()} ${path}`, { href: `#${anchor(`${method} ${path}`)}` })));
    contents.append(line);
    all.push(make("h2", group), ...routes.map((one) => route(...one)));
  }
  const schemas = Object.entries((state.api.components || {}).schemas || {}).filter(([name]) => !/ValidationError$/.test(name));
  if (schemas.length) all.push(make("h2", say("schemas")));
  for (const [name, schema] of schemas) {
    const section = make("section", "", { class: "route", id: `schema-${anchor(name)}` });
    section.append(make("h3", name), ...(schema.description ? [make("p", schema.description)] : []), ...fields(schema));
    all.push(section);
  }
  $("contents").replaceChildren(contents);
  $("routes").replaceChildren(...all);
}

const read = async (path) => {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
};

async function start() {
  show();
  try {
    const [api, settings] = await Promise.all([read("openapi.json"), read("frontend/settings")]);
    const models = settings.keyRequired ? [] : await read("api/models");
    const named = (kind) => (models.find((one) => one.kind === kind) || { name: "MODEL" }).name;
    const reader = models.find((one) => one.kind === "reader") || { name: "MODEL", inputs: ["text"] };
    const { source, target } = settings.language;
    state.api = api;
    state.server = {
      source: source.code || "en", target: target.code || "de", key: settings.keyRequired, translator: named("translator"),
      writer: models.some((one) => one.kind === "language model") ? named("language model") : reader.name, reader,
    };
    show();
    if (location.hash) location.replace(location.hash); // its target exists only now
  } catch (error) {
    $("problem").textContent = error.message;
    $("problem").hidden = false;
  }
}

$("language").addEventListener("click", () => { state.language = state.language === "en" ? "zh" : "en"; show(); });
start();
