// A chat is a tree of messages: an edited question or another answer is a sibling of the first.
// The chat's `head` is the last message of the branch that is shown.

const byTime = (a, b) => a.at - b.at || (a.id < b.id ? -1 : 1);

export function children(messages, parent) {
  return [...messages.values()].filter((m) => (m.parent ?? null) === parent).sort(byTime);
}

/** The messages from the first to `head`. An imported file may hold a circle: it ends there. */
export function path(messages, head) {
  const found = [],
    seen = new Set();
  for (let at = messages.get(head); at && !seen.has(at.id); at = messages.get(at.parent)) {
    seen.add(at.id);
    found.push(at);
  }
  return found.reverse();
}

/** The last message below this one, by the newest child each time. */
export function newestBelow(messages, id) {
  const seen = new Set();
  for (;;) {
    seen.add(id);
    const next = children(messages, id).at(-1);
    if (!next || seen.has(next.id)) return id;
    id = next.id;
  }
}

/** The message beside this one, `step` to the right, or `null`. */
export function beside(messages, one, step) {
  const all = children(messages, one.parent ?? null);
  return all[all.findIndex((m) => m.id === one.id) + step] ?? null;
}
