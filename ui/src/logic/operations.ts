/** Operations and their steps, as pages show them. Pure. */
import type { Node, Operation, OperationPlan, PlannedFetch, Step } from '../api/messages';
import { bytes, count, percent } from './format';
import { reasonsOf } from './machines';
import type { Tone } from './tones';

const FINAL = new Set(['succeeded', 'failed', 'cancelled']);

export function underWay(operation: Operation): boolean {
  return !FINAL.has(operation.status ?? '');
}

const VERBS: Record<string, [doing: string, done: string]> = {
  install: ['Installing', 'Install'],
  upgrade: ['Upgrading', 'Upgrade'],
  remove: ['Removing', 'Remove'],
  load: ['Loading', 'Load'],
  unload: ['Unloading', 'Unload'],
  install_model: ['Installing', 'Install'],
  remove_model: ['Removing', 'Remove'],
};

export function subject(operation: Operation): string {
  const model = /load|model/.test(operation.kind ?? '') ? operation.model : '';
  return plainName(model ?? '') || operation.name || plainName(operation.backend ?? '') || operation.uri || operation.id;
}

/** Of GALLERY@NAME people know the name. */
export function plainName(id: string): string {
  return id.slice(id.indexOf('@') + 1);
}

/** What would come to a machine, and whether there is room: in words, with `short` where there is none. */
export function fetchLine(fetched: PlannedFetch | undefined): { line: string; short: boolean } {
  if (!fetched) return { line: '', short: false };
  const { fetch_bytes: size, disk_free: free } = fetched;
  const room = free === null || free === undefined ? 'room on its disk not known' : `${bytes(free)} free on its disk`;
  if (size === 0) return { line: 'nothing to fetch: it ships with the worker', short: false };
  const short = typeof size === 'number' && typeof free === 'number' && size > free;
  return { line: `${typeof size === 'number' ? `fetches at most ${bytes(size)}` : 'fetches a size that is not known'}, ${room}`, short };
}

/** All machines together, of those of which it is known. */
export function fetchedInAll(plan: OperationPlan): string {
  const all = plan.fetches ?? [];
  const known = all.filter((one) => typeof one.fetch_bytes === 'number');
  if (!all.length || !known.length) return '';
  const sum = bytes(known.reduce((total, one) => total + one.fetch_bytes!, 0));
  return `At most ${sum} fetched in all${known.length < all.length ? `, without ${count(all.length - known.length, 'machine')} of which the size is not known` : ''}, as packed: unpacked it takes more room.`;
}

const WORK: Record<'model' | 'backend', ReadonlySet<string>> = { model: new Set(['install_model', 'remove_model']), backend: new Set(['install', 'upgrade', 'remove']) };

/** What is under way with a model or a backend of a gallery: until it is over, its card leads there. */
export function workOn(operations: Iterable<Operation>, what: 'model' | 'backend', name: string): Operation | undefined {
  return [...operations].find((one) => WORK[what].has(one.kind ?? '') && underWay(one) && subject(one) === name);
}

/** For the button that leads to it: what is done, and how far it is; where it stands still, that. */
export function workLine(operation: Operation): string {
  const doing = VERBS[operation.kind ?? '']?.[0] ?? 'At work';
  const { word, tone } = statusOf(operation);
  return `${doing}: ${tone === 'busy' ? percent((operation.percentage ?? 0) / 100) : word}`;
}

export function title(operation: Operation): string {
  const [doing, done] = VERBS[operation.kind ?? ''] ?? [operation.kind ?? '', operation.kind ?? ''];
  return `${underWay(operation) ? doing : done} ${subject(operation)}`;
}

const TONES: Record<string, Tone> = {
  queued: 'idle',
  running: 'busy',
  retrying: 'warn',
  paused: 'idle',
  cancelling: 'warn',
  succeeded: 'ok',
  failed: 'bad',
  cancelled: 'idle',
};
const WORDS: Record<string, string> = { retrying: 'waits to retry', succeeded: 'done' };

export function statusOf(operation: Operation): { word: string; tone: Tone } {
  const status = operation.status ?? '';
  return { word: WORDS[status] ?? status, tone: TONES[status] ?? 'idle' };
}

export interface StepPill {
  word: string;
  tone: Tone;
  title: string;
}

export const BUSY_TITLE = 'The reply timed out, but the worker may still be at work: it continues, and the result is shown when it is heard.';

const PHASES: Record<string, string> = {
  resolving: 'looking it up',
  extracting: 'unpacking',
  hashing: 'checking files',
  staging: 'copying files',
  apply: 'at work',
  prove: 'starting it',
  roll_back: 'rolling back',
};

/** What a step at work is at, for people. */
export function phaseWord(step: Step): string {
  const phase = step.progress?.phase || step.stage || 'downloading';
  return PHASES[phase] ?? phase;
}

/** queued, downloading, worker busy, done, failed, skipped, cancelled. */
export function pill(step: Step): StepPill {
  switch (step.state) {
    case 'succeeded':
      return { word: 'done', tone: 'ok', title: '' };
    case 'failed':
      return { word: 'failed', tone: 'bad', title: step.problem?.message ?? '' };
    case 'skipped':
      return { word: 'skipped', tone: 'idle', title: step.reason ?? '' };
    case 'cancelled':
      return { word: 'cancelled', tone: 'idle', title: '' };
    case 'pending':
      return step.failures
        ? { word: 'waits to retry', tone: 'warn', title: step.problem?.message ?? '' }
        : { word: 'queued', tone: 'idle', title: step.reason ?? '' };
  }
  if (step.wire_status === 'running_on_worker' && !step.reason) return { word: 'worker busy', tone: 'warn', title: BUSY_TITLE };
  return { word: phaseWord(step), tone: 'busy', title: '' };
}

/** Why nothing can happen on the machine of a running step; empty while it is heard. The frontend holds its attempt open until
 * then, with the reason beside it; that of the machine is younger. One that is drained still works on what it has begun. */
export function away(step: Step, node: Node | undefined): string {
  if (step.state !== 'running') return '';
  const reasons = reasonsOf(node).join('; ');
  if (node?.status === 'offline') return `${['the machine is offline', reasons].filter(Boolean).join(': ')}; this goes on when it is back`;
  const heard = step.progress && !step.progress.age_s;
  if (!step.reason || heard || node?.status === 'draining') return '';
  return reasons ? `${reasons}; this goes on when it is back` : step.reason;
}

/** How long until the next try of a step that waits for it, in seconds; 0 when it does not, or that is not known. */
export function nextTryIn(step: Step, nowMs: number): number {
  if (step.state !== 'pending' || !step.failures || !step.not_before) return 0;
  return Math.max(0, Math.ceil((Date.parse(step.not_before) - nowMs) / 1000));
}

/** By name, so that no row moves while its machine gets on. */
export function sortedSteps(steps: readonly Step[]): Step[] {
  return [...steps].sort((a, b) => (a.node_name ?? '').localeCompare(b.node_name ?? '', 'en', { numeric: true }));
}

/** A load is not retried: another one is asked for. */
export function mayRetry(operation: Operation): boolean {
  return operation.status === 'failed' && operation.retryable === true;
}

/** Each failure, as far as they are known here, would come again just so. */
export function hopeless(operation: Operation): boolean {
  const failed = (operation.steps ?? []).filter((step) => step.state === 'failed');
  return failed.length > 0 && failed.every((step) => step.problem && !step.problem.retryable);
}

export function newestFirst(a: Operation, b: Operation): number {
  return Date.parse(b.asked_at) - Date.parse(a.asked_at) || b.id.localeCompare(a.id);
}

export function summary(operation: Operation): string {
  const counts = operation.counts ?? {};
  const all = Object.values(counts).reduce((sum, one) => sum + one, 0);
  if (all <= 1) return (operation.message ?? '').replace(/^(\d+ of \d+) node(s?) done/, '$1 machine$2 done');
  const parts = [`${counts['succeeded'] ?? 0} of ${count(all, 'machine')} done`];
  for (const state of ['failed', 'skipped', 'cancelled']) if (counts[state]) parts.push(`${counts[state]} ${state}`);
  return parts.join(', ');
}
