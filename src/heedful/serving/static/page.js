"use strict";
// The page of `heedful serve`, and of the file that `heedful inspect` writes: there, `given` holds the data and no
// server is called.
const given = window.heedfulData || null;
const $ = (id) => document.getElementById(id);
const make = (tag, text = "", attributes = {}) => {
  const element = document.createElement(tag);
  element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
};
const svg = (tag, attributes, text = "") => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
};

const WORDS = {
  en: {
    model: "Model", key: "API key", theme: "Light / dark", source: "Text to translate", translation: "Translation", from: "From", to: "To",
    untrained: "not trained",
    shading: "The stronger the shading of a word, the more confident the model. Point at a word to see where it comes from.",
    alternatives: "Alternatives", prompt: "Prompt", temperature: "Temperature", length: "Tokens", goOn: "Continue",
    stop: "Stop", nextTokens: "Likely next tokens", kind: "Attention", layer: "Layer", head: "Head", map: "Heat map",
    lines: "Lines", allHeads: "All heads (choose one)", tree: "The beam as a tree", tokens: "Tokens",
    attention: "Attention", steps: "Steps", positions: "Positions", cross: "target to source", encoder: "source to source",
    decoder: "target to target", own: "text to text",
    stepHint: "The most likely next tokens at each step. Choose one to force it; the model continues from there.",
    embeddingHint: "{}: what the encoder adds to the embeddings, one row per position, one column per dimension.",
    rotationHint: "{}: the cosine of the angle by which queries and keys are rotated, one row per position, one column per dimension.",
    biasHint: "{}: what is added to the first head's scores, one row per query, one column per key.",
    noPositionHint: "This model's encoder has no position encoding to draw ({}).",
    forced: "Forced", free: "Let the model choose", looks: "attends to", sourceTokens: "Source", targetTokens: "Target",
    probability: "probability", step: "step", noWeights: "This model's attention has no weights to show.",
    copy: "Copy", copied: "Copied", notCopied: "The browser does not allow copying", share: "Copy link", api: "API",
    linkCopied: "Link copied", linkShown: "The link is in the address bar", beams: "Beam size", glossary: "Glossary",
    glossaryHint: "One phrase per line.", required: "Phrases the translation must contain",
    avoid: "Phrases the translation must not contain", fertility: "Target tokens of this word", weight: "Attention weight",
    axes_cross: "(rows: target tokens being predicted; columns: source tokens)",
    axes_encoder: "(rows and columns: source tokens)", axes_decoder: "(rows and columns: target tokens read)",
    axes_own: "(rows and columns: tokens of the text)", noModel: "The link asks for the model “{name}”, which is not served here.",
    part: "The text was translated in {count} parts. This is part {number}: “{text}”",
  },
  zh: {
    model: "模型", key: "API 密钥", theme: "浅色 / 深色", source: "要翻译的文本", translation: "译文", from: "从", to: "到", untrained: "未训练",
    shading: "词的底色越浓，模型越有把握。指向一个词，可以看到它来自哪里。",
    alternatives: "其他译法", prompt: "提示", temperature: "温度", length: "词元数", goOn: "继续写", stop: "停止",
    nextTokens: "接下来可能是", kind: "注意力", layer: "层", head: "头", map: "热力图", lines: "连线", allHeads: "所有的头，可选择",
    tree: "束搜索树", tokens: "词元", attention: "注意力", steps: "步骤", positions: "位置", cross: "译文看原文",
    encoder: "原文看原文", decoder: "译文看译文", own: "文本看文本",
    stepHint: "每一步最可能的词元。选择一个，模型就从那里继续。",
    embeddingHint: "{}：编码器加到词嵌入上的数值，每个位置一行，每个维度一列。",
    rotationHint: "{}：查询和键旋转角度的余弦，每个位置一行，每个维度一列。",
    biasHint: "{}：加到第一个头的分数上的偏置，每个查询一行，每个键一列。",
    noPositionHint: "该模型的编码器没有可画的位置编码（{}）。",
    forced: "已指定", free: "让模型自由选择", looks: "关注", sourceTokens: "原文", targetTokens: "译文", probability: "概率", step: "步",
    noWeights: "这个模型的注意力没有可以显示的权重。",
    copy: "复制", copied: "已复制", notCopied: "浏览器不允许复制", share: "复制链接", api: "API", linkCopied: "链接已复制",
    linkShown: "链接在地址栏中", beams: "束宽", glossary: "术语表", glossaryHint: "每行一个短语。", required: "译文必须包含的短语",
    avoid: "译文不得包含的短语", fertility: "该词对应的译文词元数", weight: "注意力权重", axes_cross: "（行：正在预测的译文词元；列：原文词元）",
    axes_encoder: "（行和列：原文词元）", axes_decoder: "（行和列：已读入的译文词元）", axes_own: "（行和列：文本的词元）",
    noModel: "链接要求的模型“{name}”不在这台服务器上。",
    part: "文本分为 {count} 部分翻译。这是第 {number} 部分：“{text}”",
  },
};
for (const more of [READER_WORDS, CHAT_WORDS]) {
  for (const [language, words] of Object.entries(more)) Object.assign(WORDS[language], words);
}
// `placed`: the alignment head has been preselected; from then on the choice is the user's. `example`: the text that the
// page filled in itself, and `readExample` the same for a reader. `missing`: the model that a link asks for and that is not served here.
const state = {
  language: "en", data: null, translation: null, prediction: null, kind: "cross", layer: 0, head: 0, placed: false, prefix: "", tab: "attention",
  turn: 0, models: [], example: "", readExample: "\t", missing: "",
};
const say = (name, values = {}) => (WORDS[state.language][name] || name).replace(/\{(\w+)\}/g, (_, key) => values[key]);
const model = () => state.models.find((one) => one.name === $("model").value);
const isStepwise = () => !model() || model().stepwise !== false; // or it writes all words at once
const isWriter = () => model() && model().kind === "language model";

async function ask(path, body) {
  const headers = { "Content-Type": "application/json" };
  if ($("key").value) headers.Authorization = "Bearer " + $("key").value;
  const answer = await fetch(path, body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body) });
  const data = await answer.json();
  if (!answer.ok) throw new Error(typeof data.error === "string" ? data.error : data.error.message);
  return data;
}

// The events of a streamed answer.
async function* streamed(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if ($("key").value) headers.Authorization = "Bearer " + $("key").value;
  const answer = await fetch(path, { method: "POST", headers, signal, body: JSON.stringify({ ...body, stream: true }) });
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  const reader = answer.body.getReader(), decoder = new TextDecoder();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (held + decoder.decode(value, { stream: true })).split("\n\n");
    held = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

function problem(text) {
  const whole = [state.missing && say("noModel", { name: state.missing }), text].filter(Boolean).join(" ");
  $("problem").textContent = whole;
  $("problem").hidden = !whole;
}

// --- copying, and links to the current inputs; these are in the fragment, which is not sent to the server

let statusTimer = 0;
function showStatus(text) {
  $("status").textContent = text;
  clearTimeout(statusTimer);
  statusTimer = setTimeout(() => { $("status").textContent = ""; }, 4000);
}

async function copy(text, done, failed) {
  let copied = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch { // the clipboard API needs HTTPS or localhost
    const focused = document.activeElement, field = make("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    copied = document.execCommand("copy");
    field.remove();
    focused.focus();
  }
  showStatus(say(copied ? done : failed));
}

function link() {
  const text = isReader() ? readerLine() : $(isWriter() ? "prompt" : "source").value;
  const asked = new URLSearchParams({ text, model: $("model").value });
  if (isWriter()) {
    for (const name of ["temperature", "length"]) asked.set(name, $(name).value);
  } else if (!isReader()) {
    asked.set("beams", beams());
    for (const [name, code] of Object.entries(spoken())) asked.set(name, code);
    for (const name of ["required", "avoid"]) phrases(name).forEach((phrase) => asked.append(name, phrase));
  }
  return `${location.href.split("#")[0]}#${asked}`;
}

// Once the address bar holds a link, keep it up to date with the inputs.
const follow = () => { if (location.hash) history.replaceState(null, "", link()); };

function readLink() {
  const asked = new URLSearchParams(location.hash.slice(1));
  if (!asked.has("text") && !asked.has("model")) return false;
  const wanted = asked.get("model"), known = state.models.some((one) => one.name === wanted);
  if (known) $("model").value = wanted;
  state.missing = wanted && !known ? wanted : "";
  if (isReader()) setReaderLine(asked.get("text") || "");
  else $(isWriter() ? "prompt" : "source").value = asked.get("text") || "";
  for (const name of ["beams", "temperature", "length"]) if (asked.has(name)) $(name).value = asked.get(name);
  offerLanguages(asked.get("source"), asked.get("target"));
  for (const name of ["required", "avoid"]) $(name).value = asked.getAll(name).join("\n");
  $("glossary").open = asked.has("required") || asked.has("avoid");
  return true;
}

// --- translating

// The languages of a model that knows several; the target's choices follow the source.
const spoken = () => ($("directions").hidden ? {} : { source: $("from").value, target: $("to").value });

function offerLanguages(source = $("from").value, target = $("to").value) {
  const { directions = [], untrained = [] } = model() || {}, all = [...directions, ...untrained];
  $("directions").hidden = !directions.length;
  if (!directions.length) return;
  const sources = [...new Set(all.map(([from]) => from))];
  const from = sources.includes(source) ? source : sources[0];
  const targets = all.filter(([one]) => one === from).map(([, to]) => to);
  const rare = new Set(untrained.filter(([one]) => one === from).map(([, to]) => to));
  fill($("from"), sources.map((code) => [code, code]), from);
  fill($("to"), targets.map((code) => [code, rare.has(code) ? `${code} (${say("untrained")})` : code]), targets.includes(target) ? target : targets[0]);
}

let timer = 0;
function later() {
  clearTimeout(timer);
  timer = setTimeout(() => { state.prefix = ""; translate(); }, 250);
}
const beams = () => Math.min(8, Math.max(1, Math.round(Number($("beams").value)) || 4));
const phrases = (name) => $(name).value.split("\n").map((line) => line.trim()).filter(Boolean);

async function translate() {
  const text = $("source").value, turn = ++state.turn;
  follow();
  if (!text.trim()) {
    state.translation = state.data = null;
    problem("");
    $("inside").setAttribute("aria-busy", "false");
    showAll();
    return;
  }
  $("inside").setAttribute("aria-busy", "true");
  try {
    const asked = {
      text, model: $("model").value, num_beams: beams(), target_prefix: state.prefix, constraints: phrases("required"),
      avoid: phrases("avoid"), ...spoken(),
    };
    if (!isStepwise()) Object.assign(asked, { num_beams: 1, target_prefix: "", constraints: [], avoid: [] });
    const answer = await ask("api/translate", { ...asked, num_return_sequences: Math.min(4, asked.num_beams) });
    if (turn !== state.turn) return;
    state.translation = answer.translations[0];
    problem(state.translation.warnings.join("; "));
    showTranslation();
    state.data = null;
    const data = await ask("api/inspect", asked);
    if (turn !== state.turn) return;
    state.data = data;
    place();
    showInside();
  } catch (error) {
    if (turn !== state.turn) return;
    problem(error.message);
    showInside();
  }
  $("inside").setAttribute("aria-busy", "false");
}

// Show the alignment head first.
function place() {
  if (state.placed || !state.data.aligner) return;
  [state.layer, state.head] = state.data.aligner;
  state.kind = "cross";
  state.placed = true;
}

// Chinese, Japanese and some other scripts put no space after a word.
const gap = (word) => (/^[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uff65]/.test(word) ? "" : " ");

function showTranslation() {
  const found = state.translation, target = $("target"), words = $("source-words");
  target.replaceChildren();
  words.replaceChildren();
  $("alternatives").replaceChildren();
  $("copy").disabled = !found;
  $("alternatives-label").hidden = Boolean(found) && !found.alternatives.length;
  if (!found) return;
  const links = found.alignment || [], sources = found.source_words;
  const shown = sources.map((word) => make("span", word));
  shown.forEach((span) => words.append(span, gap(span.textContent)));
  if (found.fertilities) {
    const all = [...shown, make("span", "</s>")];
    words.append(all[shown.length]);
    all.forEach((span, place) => span.append(make("small", String(found.fertilities[place]), { title: say("fertility") })));
  }
  const written = found.words.map((word) => word);
  written.forEach((word, place) => {
    const span = make("span", word.text, { tabindex: 0, title: `${say("probability")} ${word.probability.toFixed(3)}` });
    span.style.background = `rgba(var(--blue), ${(0.28 * word.probability).toFixed(3)})`;
    const lit = links.filter(([, to]) => to === place).map(([from]) => shown[from]).filter(Boolean);
    const light = (on) => () => [span, ...lit].forEach((one) => one.classList.toggle("lit", on));
    for (const name of ["mouseenter", "focus"]) span.addEventListener(name, light(true));
    for (const name of ["mouseleave", "blur"]) span.addEventListener(name, light(false));
    target.append(span, gap(word.text));
  });
  shown.forEach((word, place) => {
    const lit = links.filter(([from]) => from === place).map(([, to]) => target.querySelectorAll("span")[to]).filter(Boolean);
    const light = (on) => () => [word, ...lit].forEach((one) => one.classList.toggle("lit", on));
    word.addEventListener("mouseenter", light(true));
    word.addEventListener("mouseleave", light(false));
  });
  for (const other of found.alternatives) $("alternatives").append(make("li", other.text));
}

// --- inside

const PANELS = ["decisive", "tokens", "attention", "steps", "positions"];
function TABS() {
  if (isReader()) return model().inspects ? ["decisive", "tokens", "attention", "positions"] : [];
  if (isChat()) return [];
  return isWriter() ? ["tokens", "attention"] : ["tokens", "attention", ...(isStepwise() ? ["steps"] : []), "positions"];
}

function showTabs() {
  $("tabs").replaceChildren();
  if (!TABS().includes(state.tab)) state.tab = TABS()[0] || "";
  for (const name of TABS()) {
    const tab = make("button", say(name), { role: "tab", id: `tab-${name}`, type: "button", "aria-controls": name, "aria-selected": name === state.tab, tabindex: name === state.tab ? 0 : -1 });
    tab.addEventListener("click", () => { state.tab = name; showTabs(); showInside(); });
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const all = TABS();
      state.tab = all[(all.indexOf(name) + step + all.length) % all.length];
      showTabs();
      showInside();
      $(`tab-${state.tab}`).focus();
    });
    $("tabs").append(tab);
  }
  for (const name of PANELS) {
    $(name).hidden = name !== state.tab;
    $(name).setAttribute("aria-labelledby", `tab-${name}`);
  }
}

function showInside() {
  showTabs();
  const part = state.data && state.data.part;
  $("inside").hidden = !TABS().length;
  $("part").hidden = !part || part.count === 1;
  $("part").textContent = part ? say(isReader() ? "windows" : "part", part) : "";
  $("legend").hidden = true;
  if (!state.data) {
    for (const id of ["tokens", "heads", "lines", "candidates", "tree", "decisive-words", "decisive-table"]) $(id).replaceChildren();
    for (const id of ["map", "waves"]) $(id).width = $(id).height = 0;
    $("cell").textContent = $("axes").textContent = $("decisive-hint").textContent = "";
    return;
  }
  ({ decisive: showDecisive, tokens: showTokens, attention: showAttention, steps: showSteps, positions: showPositions })[state.tab]();
}

function showTokens() {
  $("tokens").replaceChildren();
  const sides = isWriter() || isReader() ? [["own", state.data.tokens]] : [["sourceTokens", state.data.source], ["targetTokens", state.data.target]];
  for (const [name, tokens] of sides) {
    $("tokens").append(make("div", say(name), { class: "label" }));
    const row = make("div");
    tokens.forEach((token, place) => {
      const box = make("span", visible(token.text), { class: "token" });
      box.append(make("small", String(token.id)));
      if (name === "targetTokens") box.title = `${say("probability")} ${Math.exp(state.data.token_log_probs[place]).toFixed(3)}`;
      row.append(box);
    });
    $("tokens").append(row);
  }
}
const visible = (text) => text.replace(/ /g, "▁").replace(/\n/g, "⏎");

function attention() {
  return isWriter() ? state.data.attention : state.data.attention[state.kind];
}

// A reader has no source, just its text.
const shownKind = (kind) => (isReader() ? "own" : kind);

function fill(select, values, chosen) {
  select.replaceChildren(...values.map(([value, text]) => make("option", text, { value })));
  select.value = String(chosen);
}

function showAttention() {
  const kinds = isWriter() ? ["own"] : ["cross", "encoder", "decoder"].filter((kind) => state.data.attention[kind]);
  if (!kinds.includes(state.kind)) state.kind = kinds[0];
  const { weights } = attention() || { weights: [] };
  if (!weights.length) { // attention without weights: draw nothing that was not actually used
    for (const name of ["kind", "layer", "head", "lines", "heads"]) $(name).replaceChildren();
    $("map").width = $("map").height = 0;
    $("cell").textContent = say("noWeights");
    $("axes").textContent = "";
    $("legend").hidden = true;
    return;
  }
  $("cell").textContent = "";
  $("axes").textContent = say(`axes_${shownKind(state.kind)}`);
  $("legend").hidden = false;
  state.layer = Math.min(state.layer, weights.length - 1);
  state.head = Math.min(state.head, weights[0].length - 1);
  fill($("kind"), kinds.map((kind) => [kind, say(shownKind(kind))]), state.kind);
  fill($("layer"), weights.map((_, index) => [index, index]), state.layer);
  fill($("head"), weights[0].map((_, index) => [index, index]), state.head);
  drawMap();
  drawLines();
  drawHeads();
}

const colour = (weight) => `rgba(${getComputedStyle(document.documentElement).getPropertyValue("--blue")}, ${weight})`;
const front = () => getComputedStyle(document.documentElement).getPropertyValue("--front");
// Characters differ in width, above all Chinese ones, so text is measured to fit.
const ruler = document.createElement("canvas").getContext("2d");
function wide(text, weight = 400, size = 13) {
  ruler.font = `${weight} ${size}px ${getComputedStyle(document.body).fontFamily}`;
  return ruler.measureText(text).width;
}
function fit(text, width, weight = 400, size = 13) {
  const all = [...visible(text)], letters = all.slice(0, 80);
  if (letters.length === all.length && wide(letters.join(""), weight, size) <= width) return letters.join("");
  while (letters.length > 1 && wide(`${letters.join("")}…`, weight, size) > width) letters.pop();
  return `${letters.join("")}…`;
}

function drawMap() {
  const { queries, keys, weights } = attention(), chosen = weights[state.layer][state.head], canvas = $("map");
  const size = Math.max(6, Math.min(26, Math.floor(1600 / Math.max(queries.length, keys.length)))), labels = size >= 11 ? 92 : 0;
  const ratio = window.devicePixelRatio || 1, width = labels + size * keys.length, height = labels + size * queries.length;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const letter = Math.min(13, size - 2), room = labels - 8;
  pen.font = `${letter}px ${getComputedStyle(document.body).fontFamily}`;
  pen.textBaseline = "middle";
  chosen.forEach((row, y) => row.forEach((weight, x) => {
    pen.fillStyle = colour(weight);
    pen.fillRect(labels + x * size, labels + y * size, size - 1, size - 1);
  }));
  if (labels) {
    pen.fillStyle = front();
    queries.forEach((token, y) => { pen.textAlign = "right"; pen.fillText(fit(token, room, 400, letter), labels - 4, labels + (y + 0.5) * size); });
    keys.forEach((token, x) => {
      pen.save();
      pen.translate(labels + (x + 0.5) * size, labels - 4);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "left";
      pen.fillText(fit(token, room, 400, letter), 0, 0);
      pen.restore();
    });
  }
  canvas.setAttribute("aria-label", `${say(shownKind(state.kind))}, ${say("layer")} ${state.layer}, ${say("head")} ${state.head}`);
  canvas.onmousemove = (event) => {
    const box = canvas.getBoundingClientRect();
    const x = Math.floor((event.clientX - box.left - labels) / size), y = Math.floor((event.clientY - box.top - labels) / size);
    const known = chosen[y] !== undefined && chosen[y][x] !== undefined;
    $("cell").textContent = known ? `${visible(queries[y])} ${say("looks")} ${visible(keys[x])}: ${chosen[y][x].toFixed(3)}` : "";
  };
}

function drawLines() {
  const { queries, keys, weights } = attention(), chosen = weights[state.layer][state.head], step = 22;
  const height = Math.max(queries.length, keys.length) * step + 10;
  const picture = svg("svg", { width: 380, height, role: "img", "aria-label": say("lines") });
  chosen.forEach((row, y) => row.forEach((weight, x) => {
    if (weight < 0.05) return;
    picture.append(svg("line", { x1: 130, y1: y * step + 14, x2: 250, y2: x * step + 14, "stroke-width": (3 * weight).toFixed(2), opacity: Math.min(1, weight + 0.1).toFixed(2) }));
  }));
  queries.forEach((token, y) => picture.append(svg("text", { x: 124, y: y * step + 18, "text-anchor": "end" }, fit(token, 120))));
  keys.forEach((token, x) => picture.append(svg("text", { x: 256, y: x * step + 18 }, fit(token, 120))));
  $("lines").replaceChildren(picture);
}

function drawHeads() {
  const { weights } = attention();
  const buttons = [];
  weights.forEach((layer, number) => layer.forEach((head, index) => {
    const button = make("button", "", { type: "button", "aria-pressed": number === state.layer && index === state.head, "aria-label": `${say("layer")} ${number}, ${say("head")} ${index}` });
    const canvas = make("canvas", "", { width: head[0].length, height: head.length });
    const pen = canvas.getContext("2d");
    head.forEach((row, y) => row.forEach((weight, x) => { pen.fillStyle = colour(weight); pen.fillRect(x, y, 1, 1); }));
    button.append(canvas, `${number}.${index}`);
    button.addEventListener("click", () => { state.layer = number; state.head = index; showAttention(); $("heads").children[number * layer.length + index].focus(); });
    buttons.push(button);
  }));
  $("heads").replaceChildren(...buttons);
}

// --- steps: the beams that lead to the best translation, and the other candidates

function bestPath() {
  // At each step, the beam whose tokens so far are those of the translation.
  const ids = state.data.target.map((token) => token.id), path = [];
  let beam = 0;
  for (let step = 0; step < state.data.history.length && step < ids.length; step++) {
    const next = state.data.history[step].find((one) => one.parent === beam && one.token === ids[step] && (one.beam !== null || one.ended));
    if (!next) break;
    path.push({ parent: beam, chosen: next });
    if (next.beam === null) break;
    beam = next.beam;
  }
  return path;
}

function showSteps() {
  const path = bestPath(), columns = [], target = state.data.target;
  if (state.prefix && !given) {
    const free = make("button", `${say("forced")}: “${state.prefix}”. ${say("free")}`, { type: "button", id: "free" });
    free.addEventListener("click", () => { state.prefix = ""; translate(); });
    columns.push(free);
  }
  const ending = state.data.history[target.length];
  const last = path.length === target.length && path.length ? path[path.length - 1].chosen.beam : null;
  const shown = path.map(({ parent, chosen }, step) => [step, parent, chosen.token]);
  if (ending && last !== null) shown.push([target.length, last, null]);
  for (const [step, parent, token] of shown) {
    const column = make("div", "", { class: "step" });
    column.append(make("h3", `${say("step")} ${step + 1}`));
    const candidates = state.data.history[step].filter((one) => one.parent === parent).sort((a, b) => b.log_prob - a.log_prob);
    for (const one of candidates.slice(0, 8)) {
      const p = Math.exp(one.log_prob), is = token === null ? one.ended : one.token === token;
      const button = make("button", "", { type: "button", "aria-current": is, "data-step": step, title: visible(one.text) });
      button.append(make("span", visible(one.text)), make("span", p.toFixed(3)));
      button.style.setProperty("--p", `${(100 * p).toFixed(1)}%`);
      button.disabled = Boolean(given) || one.text === "</s>";
      button.addEventListener("click", () => { state.prefix = (target.slice(0, step).map((t) => t.text).join("") + one.text).trimStart(); translate(); });
      column.append(button);
    }
    columns.push(column);
  }
  $("candidates").replaceChildren(...columns);
  drawTree(path);
}

function drawTree(path) {
  const high = 24, gap = 34, most = 110, best = new Set(path.map(({ chosen }) => chosen));
  const steps = state.data.history.map((step) => step.filter((one) => one.beam !== null || one.ended));
  const weight = (one) => (best.has(one) ? 700 : 400);
  const picture = svg("svg", { height: high * (Math.max(1, ...steps.map((step) => step.length)) + 1), role: "img", "aria-label": say("tree") });
  const place = (row) => row * high + 0.5 * high + 6;
  let end = 4 + wide("<s>"); // where the previous column ends; each is as wide as its widest token
  let places = new Map([[0, { x: end, y: place(0) }]]);
  picture.append(svg("text", { x: 4, y: place(0) + 4 }, "<s>"));
  for (const step of steps) {
    const next = new Map(), x = end + gap, texts = step.map((one) => fit(one.text, most, weight(one)));
    step.forEach((one, row) => {
      const y = place(row), from = places.get(one.parent), length = wide(texts[row], weight(one));
      const mark = best.has(one) ? { "stroke-width": 2.5 } : { "stroke-width": 1, class: "dim" };
      if (from) picture.append(svg("path", { d: `M${from.x + 4} ${from.y} H${x - gap + 4} C${x - 14} ${from.y} ${x - 18} ${y} ${x - 4} ${y}`, ...mark }));
      const text = svg("text", { x, y: y + 4, class: best.has(one) ? "" : "dim", "font-weight": weight(one) }, texts[row]);
      text.append(svg("title", {}, visible(one.text)));
      picture.append(text);
      end = Math.max(end, x + length);
      if (one.beam !== null) next.set(one.beam, { x: x + length, y });
    });
    places = next;
  }
  picture.setAttribute("width", Math.ceil(end) + 8);
  $("tree").replaceChildren(picture);
}

function showPositions() {
  const { kind, acts, rows } = state.data.positions, size = 7, canvas = $("waves"), pen = canvas.getContext("2d");
  const hint = (acts ? say(acts + "Hint") : say("noPositionHint")).replace("{}", kind || "–");
  $("positionHint").textContent = hint;
  canvas.hidden = !acts;
  if (!acts) return;
  const all = rows.flat(), low = Math.min(...all), high = Math.max(...all);
  canvas.width = rows[0].length * size;
  canvas.height = rows.length * size;
  rows.forEach((row, y) => row.forEach((value, x) => {
    pen.fillStyle = colour(high > low ? (value - low) / (high - low) : 0);
    pen.fillRect(x * size, y * size, size, size);
  }));
  canvas.setAttribute("aria-label", hint);
}

// --- language models

let stopping = null;
async function goOn() {
  stopping = new AbortController();
  $("stop").disabled = false;
  $("go-on").disabled = true;
  $("continuation").textContent = $("prompt").value;
  problem("");
  try {
    const asked = { model: $("model").value, prompt: $("prompt").value, max_tokens: Number($("length").value), temperature: Number($("temperature").value) };
    for await (const event of streamed("v1/completions", asked, stopping.signal)) {
      if (event.error) throw new Error(event.error.message);
      $("continuation").textContent += event.choices[0].text;
    }
  } catch (error) {
    if (error.name !== "AbortError") problem(error.message);
  }
  $("stop").disabled = true;
  $("go-on").disabled = false;
  $("copy-continuation").disabled = !$("continuation").textContent;
}

async function lookAhead() {
  const turn = ++state.turn;
  follow();
  try {
    const data = await ask("api/next", { text: $("prompt").value, model: $("model").value });
    if (turn !== state.turn) return;
    state.data = data;
    $("next").replaceChildren(...data.next.map((one) => {
      const line = make("li", `${visible(one.text)}  ${one.probability.toFixed(3)}`);
      line.style.setProperty("--p", `${(100 * one.probability).toFixed(1)}%`);
      return line;
    }));
    problem("");
    showInside();
  } catch (error) {
    if (turn === state.turn) problem(error.message);
  }
}

// --- the whole page

function showAll() {
  document.documentElement.lang = state.language;
  for (const element of document.querySelectorAll("[data-say]")) element.textContent = say(element.dataset.say);
  $("language").textContent = state.language === "en" ? "中文" : "English";
  $("translate").hidden = isWriter() || isReader();
  for (const id of ["beam-field", "glossary"]) $(id).hidden = given || !isStepwise();
  $("source-words").classList.toggle("fertile", !isStepwise());
  $("write").hidden = !isWriter() || isChat();
  $("chat").hidden = !isChat();
  $("read").hidden = !isReader();
  offerLanguages();
  showTranslation();
  showReader();
  if (isChat()) showChat();
  showInside();
}

// Show the chosen model, with its example sentence unless the user has entered a text or is about to.
function choose() {
  state.data = state.translation = state.prediction = null;
  state.prefix = "";
  state.placed = false;
  if (isReader()) {
    state.tab = model().inspects ? "decisive" : "";
    if (boxes() === state.readExample && !["first-text", "second-text"].includes(document.activeElement.id)) {
      setReaderLine(model().example || "");
      state.readExample = boxes();
    }
    showAll();
    readTexts();
    return;
  }
  if (["", "decisive"].includes(state.tab)) state.tab = "attention";
  if (!isWriter() && $("source").value === state.example && document.activeElement !== $("source")) {
    state.example = (model() && model().example) || "";
    $("source").value = state.example;
  }
  showAll();
  if (isChat()) newTalk();
  else if (isWriter()) lookAhead();
  else translate();
}

async function start() {
  state.language = (navigator.language || "en").startsWith("zh") ? "zh" : "en";
  if (given) {
    state.models = [given.prediction ? { name: "file", kind: "reader", inputs: given.inputs, inspects: true } : { name: "file", kind: "translator", stepwise: given.translation.stepwise }];
    fill($("model"), [["file", "file"]], "file");
    for (const element of document.querySelectorAll(".live")) element.hidden = true;
    state.data = given.inspected;
    if (given.prediction) {
      setReaderLine(given.text);
      state.prediction = { line: given.text, ...given.prediction };
      state.tab = "decisive";
    } else {
      $("source").value = given.text;
      state.translation = given.translation;
      place();
    }
    for (const id of ["source", "first-text", "second-text"]) $(id).readOnly = true;
    showAll();
  } else {
    try {
      $("key-field").hidden = !(await ask("frontend/settings")).keyRequired;
      state.models = await ask("api/models");
    } catch (error) {
      problem(error.message);
      showAll();
      return;
    }
    problem("");
    fill($("model"), state.models.map((one) => [one.name, languages(one)]), state.models.length ? state.models[0].name : "");
    readLink();
    choose();
  }
}
const languages = ({ name, source, target, task, directions = [] }) => (directions.length ? `${name} (${[...new Set(directions.flat())].join(", ")})` : source && source !== "src" ? `${name} (${source} → ${target})` : task ? `${name} (${task.replace(/_/g, " ")})` : name);

for (const id of ["source", "beams", "required", "avoid"]) $(id).addEventListener("input", later);
for (const id of ["from", "to"]) $(id).addEventListener("change", () => { offerLanguages(); later(); });
for (const id of ["first-text", "second-text"]) $(id).addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(readTexts, 250); });
$("view").addEventListener("change", showDecisive);
$("copy").addEventListener("click", () => copy(state.translation.text, "copied", "notCopied"));
$("copy-continuation").addEventListener("click", () => copy($("continuation").textContent, "copied", "notCopied"));
$("share").addEventListener("click", () => {
  history.replaceState(null, "", link());
  copy(location.href, "linkCopied", "linkShown");
});
window.addEventListener("hashchange", () => { if (!given && readLink()) choose(); });
$("prompt").addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(lookAhead, 300); });
$("go-on").addEventListener("click", goOn);
listenToChat();
$("stop").addEventListener("click", () => stopping && stopping.abort());
$("model").addEventListener("change", () => { state.missing = ""; choose(); });
$("key").addEventListener("change", start);
$("kind").addEventListener("change", (event) => { state.kind = event.target.value; showAttention(); });
$("layer").addEventListener("change", (event) => { state.layer = Number(event.target.value); showAttention(); });
$("head").addEventListener("change", (event) => { state.head = Number(event.target.value); showAttention(); });
$("language").addEventListener("click", () => { state.language = state.language === "en" ? "zh" : "en"; showAll(); });
$("theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  showInside();
});
start();
