"use strict";
// The part of the page for models that were trained to talk. Loaded before page.js, whose helpers it uses. What is said
// is shown as text, never as HTML.
const CHAT_WORDS = {
  en: {
    systemHint: "What the model is told before the conversation.",
    chatHint: "Write a message. The model reads the whole conversation each time.", message: "Message", send: "Send",
    newTalk: "New conversation", system: "Instructions to the model (optional)", you: "You", cutOff: "cut off by the length limit",
    forgotten: "The oldest {count} messages no longer fit the model and are not read any more.",
  },
  zh: {
    systemHint: "对话开始之前告诉模型的内容。",
    chatHint: "写一条消息。模型每次都会阅读整个对话。", message: "消息", send: "发送", newTalk: "新对话", system: "给模型的说明（可选）",
    you: "你", cutOff: "达到长度上限，被截断", forgotten: "最早的 {count} 条消息已放不下，模型不再阅读。",
  },
};
const isChat = () => Boolean(model()) && Boolean(model().chats);
const talk = { messages: [], turn: 0, stopping: null, notes: new Map() };

function showChat() {
  $("talk").replaceChildren(...talk.messages.map((one, place) => bubble(one, talk.notes.get(place))));
  $("talk-empty").hidden = talk.messages.length > 0;
  $("talk").scrollTop = $("talk").scrollHeight;
}

function bubble({ role, content }, note) {
  const line = make("li", "", { class: role });
  line.append(make("div", role === "user" ? say("you") : model().name, { class: "label" }), make("div", content, { class: "said" }));
  if (note) line.append(make("p", say(...note), { class: "hint" }));
  return line;
}

function newTalk() {
  talk.turn += 1;
  if (talk.stopping) talk.stopping.abort();
  talk.messages = [];
  talk.notes.clear();
  problem("");
  busy(false);
  showChat();
}

function busy(on) {
  $("send").disabled = on;
  $("stop-reply").disabled = !on;
  $("talk").setAttribute("aria-busy", String(on));
}

async function send() {
  const text = $("message").value.trim(), turn = ++talk.turn;
  if (!text || $("send").disabled) return;
  talk.messages.push({ role: "user", content: text });
  $("message").value = "";
  const system = $("system").value.trim(), messages = [...(system ? [{ role: "system", content: system }] : []), ...talk.messages];
  const asked = { model: model().name, messages, temperature: Number($("chat-temperature").value), max_tokens: 200 };
  const reply = { role: "assistant", content: "" }, place = talk.messages.push(reply) - 1;
  talk.stopping = new AbortController();
  busy(true);
  showChat();
  try {
    for await (const event of streamed("v1/chat/completions", asked, talk.stopping.signal)) {
      if (turn !== talk.turn) return;
      if (event.error) throw new Error(event.error.message);
      if (event.dropped_messages) talk.notes.set(place, ["forgotten", { count: event.dropped_messages }]);
      const { delta, finish_reason: reason } = event.choices[0];
      reply.content += delta.content || "";
      if (reason === "length" && !talk.notes.has(place)) talk.notes.set(place, ["cutOff"]);
      showChat();
    }
    problem("");
  } catch (error) {
    if (turn !== talk.turn) return;
    if (error.name !== "AbortError") problem(error.message);
    if (!reply.content) { // nothing was said: the message can be sent again
      talk.messages.splice(-2);
      $("message").value = $("message").value || text;
    }
  }
  busy(false);
  showChat();
  $("message").focus();
}

// Called by page.js, which has `$`.
function listenToChat() {
  $("send").addEventListener("click", send);
  $("stop-reply").addEventListener("click", () => talk.stopping && talk.stopping.abort());
  $("new-talk").addEventListener("click", newTalk);
  $("message").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
}
