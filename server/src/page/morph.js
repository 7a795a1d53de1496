// Brings an element to another's state with as few changes as it takes. Text that only grew is
// appended to, so that a selection in an answer stays while the answer is written.

/** Shows `blocks` in `root`. Blocks whose source is unchanged are not touched. */
export function showBlocks(root, blocks) {
  const shown = root.shown ?? [];
  root.shown = blocks.map((block) => block.source);
  let at = 0;
  while (at < blocks.length && at < shown.length && shown[at] === blocks[at].source) at += 1;
  for (; at < blocks.length; at += 1) {
    const node = blocks[at].make(),
      old = root.childNodes[at];
    if (!old) root.append(node);
    else if (!morph(old, node)) old.replaceWith(node);
  }
  while (root.childNodes.length > blocks.length) root.lastChild.remove();
}

/** Makes `old` what `fresh` is. False if it has to be replaced. */
function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) return false;
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data === fresh.data) return true;
    if (fresh.data.startsWith(old.data)) old.appendData(fresh.data.slice(old.data.length));
    else old.data = fresh.data;
    return true;
  }
  // An element that says how (a block of code) grows by its own means.
  if (fresh.grow) return Boolean(old.grow?.(fresh));
  if (old.grow || old.attributes.length !== fresh.attributes.length) return false;
  for (const { name, value } of fresh.attributes)
    if (old.getAttribute(name) !== value) return false;
  const inside = [...fresh.childNodes];
  inside.forEach((node, at) => {
    const before = old.childNodes[at];
    if (!before) old.append(node);
    else if (!morph(before, node)) before.replaceWith(node);
  });
  while (old.childNodes.length > inside.length) old.lastChild.remove();
  return true;
}
