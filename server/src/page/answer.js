// Answers: asks the model, keeps what comes, says how it ended. An answer goes on while another
// chat is shown.

import { events, post, Refused } from "./ask.js";
import { contentOf } from "./files.js";
import { samplers, sound } from "./settings.js";
import { add, isBusy, kept, say, state } from "./state.js";
import { putMessage } from "./store.js";
import { asWriter, hasWriter, tell } from "./tabs.js";
import { toast } from "./toast.js";
import { path } from "./tree.js";
import { t } from "./words.js";

/** Milliseconds between two writes of an answer that grows. */
const SAVE = 600;

/** The messages of a branch as the server reads them. */
function conversation(branch, settings) {
  const messages = branch
    .filter((m) => m.role === "user" || m.content)
    .map((m) => ({
      role: m.role,
      content: m.role === "user" ? contentOf(m.content, m.files) : m.content,
    }));
  const system = settings.system.trim();
  return system ? [{ role: "system", content: system }, ...messages] : messages;
}

/** Sends a message below the branch that is shown. */
export async function send(content, files, parent = state.chat.head) {
  const { chat, messages } = state;
  if (isBusy(chat.id)) return false;
  const asked = await add(chat, messages, { parent, role: "user", content, files });
  answer(chat, messages, asked);
  return true;
}

/** Another answer to the same question, beside the others. */
export function again(one, temperature = null) {
  const question = state.messages.get(one.parent);
  if (question && !isBusy(state.chat.id)) answer(state.chat, state.messages, question, temperature);
}

/** Goes on with an answer that was cut. */
export function goOn(one) {
  const { chat, messages } = state;
  if (isBusy(chat.id)) return;
  writing(chat, one, (here) => fill(chat, messages, here, one.temperature ?? null, true));
}

function answer(chat, messages, question, temperature = null) {
  return writing(chat, null, async (here) => {
    const fields = { parent: question.id, role: "assistant", state: "writing" };
    here.message = await add(chat, messages, { ...fields, model: chat.model, temperature });
    await fill(chat, messages, here, temperature, false);
  });
}

/** Runs `work` as the one that writes into the chat. */
async function writing(chat, message, work) {
  if (state.running.has(chat.id)) return;
  const control = new AbortController();
  const here = { message, signal: control.signal, stop: () => control.abort() };
  state.running.set(chat.id, here);
  const could = await asWriter(chat.id, async () => {
    tell({ chat: chat.id, writing: true });
    say("busy", chat.id);
    await work(here);
  });
  state.running.delete(chat.id);
  if (could) tell({ chat: chat.id, writing: false });
  else toast(t("otherTab"));
  if (here.message) say("message", here.message);
  say("busy", chat.id);
}

/** Asks the model, and puts into the message what comes. */
async function fill(chat, messages, { message: one, signal }, temperature, goesOn) {
  one.state = "writing";
  one.error = "";
  delete one.finish;
  say("message", one);
  const settings = { ...sound(chat.settings), ...(temperature == null ? {} : { temperature }) };
  const branch = path(messages, one.id).slice(0, -1);
  try {
    const stream = goesOn ? rest(chat, settings, branch, one) : whole(chat, settings, branch);
    await receive(one, stream(signal), chat.id);
    one.state = one.finish === "length" ? "cut" : "done";
  } catch (error) {
    const stopped = error.name === "AbortError";
    one.state = stopped ? "stopped" : "error";
    if (!stopped) {
      one.error = error instanceof Refused ? error.message : `${error.name}: ${error.message}`;
      if (!(error instanceof Refused)) console.error(error);
    }
  }
  await kept(() => putMessage(one));
}

const common = (chat) => ({
  ...(chat.model ? { model: chat.model } : {}),
  stream: true,
  stream_options: { include_usage: true, continuous_usage_stats: true },
});

function whole(chat, settings, branch) {
  const body = { ...common(chat), messages: conversation(branch, settings), ...samplers(settings) };
  return (signal) => events("v1/chat/completions", body, signal);
}

/** The rest of an answer: the prompt by the model's template, and the answer so far behind it. */
function rest(chat, settings, branch, one) {
  return async function* (signal) {
    const messages = conversation(branch, settings);
    const model = chat.model ? { model: chat.model } : {};
    const { prompt } = await post("apply-template", { ...model, messages }, signal);
    const { max_tokens = -1, ...others } = samplers(settings);
    const body = { ...common(chat), prompt: prompt + one.content, max_tokens, ...others };
    yield* events("v1/completions", body, signal);
  };
}

async function receive(one, stream, chat) {
  const begun = performance.now();
  const before = one.stats?.tokens ?? 0,
    stats = { tokens: before, prompt: 0, first: null, rate: null };
  let first = 0,
    saved = begun;
  one.stats = stats;
  for await (const event of stream) {
    const choice = event.choices?.[0],
      delta = choice?.delta ?? {};
    const text = delta.content ?? choice?.text ?? "";
    const now = performance.now();
    if (text || delta.reasoning_content) {
      first ||= now;
      stats.first ??= (first - begun) / 1000;
      // Time of a thought, for the line above it.
      if (text && one.reasoning && one.thought == null) one.thought = (now - begun) / 1000;
    }
    one.content += text;
    one.reasoning += delta.reasoning_content ?? "";
    if (choice?.finish_reason) one.finish = choice.finish_reason;
    if (event.usage) {
      stats.tokens = before + event.usage.completion_tokens;
      stats.prompt = event.usage.prompt_tokens;
      stats.context = event.usage.prompt_tokens + event.usage.completion_tokens;
      const [since, tokens] = [(now - first) / 1000, event.usage.completion_tokens - 1];
      if (first && tokens > 0 && since > 0) stats.rate = tokens / since;
    }
    say("message", one);
    if (now - saved > SAVE) {
      saved = now;
      one.beat = Date.now();
      await kept(() => putMessage(one));
      tell({ chat, message: one.id });
    }
  }
}

/** Stops the answer of a chat, in whichever tab it is written. */
export function stop(id = state.chat.id) {
  const here = state.running.get(id);
  if (here) here.stop();
  else if (state.elsewhere.has(id)) tell({ stop: id });
}

/** A tab that was closed says nothing more: whether its answer still grows is looked up. */
export async function lookForWriters() {
  for (const id of state.elsewhere) {
    const last = id === state.chat.id ? state.messages.get(state.chat.head) : null;
    if (await hasWriter(id, last)) continue;
    state.elsewhere.delete(id);
    if (last?.state === "writing") {
      last.state = "interrupted";
      await kept(() => putMessage(last));
      say("message", last);
    }
    say("busy", id);
  }
}
