/** Where the focus goes when a dialog is over. */

/** What was used last to open one: a dialog that follows another has no other. */
let opener: HTMLElement | null = null;

/** To be asked before a dialog opens: what had the focus. */
export function openedFrom(): HTMLElement | null {
  const here = document.activeElement;
  if (here instanceof HTMLElement && here !== document.body) opener = here;
  return opener;
}

/** The browser gives the focus back when a dialog is closed, but not when it is taken away, as after an answer; and what
 * had it may be gone. */
export function giveBack(to: HTMLElement | null): void {
  queueMicrotask(() => {
    if (document.activeElement && document.activeElement !== document.body) return;
    (to?.isConnected ? to : document.getElementById('main'))?.focus();
  });
}
