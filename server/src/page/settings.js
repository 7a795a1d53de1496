// Settings of a chat: what they are, their limits, and what a request says of them.

/** Samplers with their usual value and range. An empty text leaves the field out. */
export const FIELDS = {
  temperature: { usual: 0.8, min: 0, max: 2, step: 0.05 },
  max_tokens: { usual: "", min: 1, step: 1 },
  top_p: { usual: 0.95, min: 0, max: 1, step: 0.01 },
  top_k: { usual: 40, min: 0, step: 1 },
  min_p: { usual: 0.05, min: 0, max: 1, step: 0.01 },
  repeat_penalty: { usual: 1, min: 0.5, max: 2, step: 0.05 },
  presence_penalty: { usual: 0, min: -2, max: 2, step: 0.1 },
  frequency_penalty: { usual: 0, min: -2, max: 2, step: 0.1 },
  seed: { usual: "", step: 1 },
};

export const USUAL = {
  system: "",
  ...Object.fromEntries(Object.entries(FIELDS).map(([name, f]) => [name, f.usual])),
};

/** The settings that are known and have a value of their kind. */
export function sound(given) {
  const made = { ...USUAL };
  for (const [name, value] of Object.entries(given ?? {})) {
    if (name === "system" && typeof value === "string") made.system = value;
    else if (name in FIELDS && value !== "" && Number.isFinite(Number(value)))
      made[name] = Number(value);
    else if (name in FIELDS && value === "") made[name] = "";
  }
  return made;
}

/** The samplers as fields of a request. */
export function samplers(settings) {
  const fields = {};
  for (const name of Object.keys(FIELDS)) {
    if (settings[name] !== "" && settings[name] != null) fields[name] = Number(settings[name]);
  }
  // A value that asks for nothing is left out, so that servers without the sampler agree.
  for (const name of ["presence_penalty", "frequency_penalty"]) {
    if (fields[name] === 0) delete fields[name];
  }
  if (fields.repeat_penalty === 1) delete fields.repeat_penalty;
  return fields;
}
