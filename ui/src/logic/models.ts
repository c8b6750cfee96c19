/** Models, as pages show them. Pure. */
import type { Model, RemovalPlan, Replica } from '../api/messages';
import { bytes, count, list } from './format';
import type { Tone } from './tones';

/** Whether it is another name for a model that is not there. */
export function brokenAlias(model: Model, known: ReadonlyMap<string, Model>): boolean {
  return Boolean(model.alias) && ![...known.values()].some((one) => one.name === model.alias);
}

export function standing(model: Model, replicas: readonly Replica[], broken = false): { word: string; tone: Tone } {
  if (broken) return { word: 'broken alias', tone: 'bad' };
  const states = new Set(replicas.map((one) => one.state));
  if (states.has('loaded')) return { word: 'loaded', tone: 'ok' };
  if (states.has('loading') || states.has('staging')) return { word: 'loading', tone: 'busy' };
  if (states.has('unloading')) return { word: 'unloading', tone: 'idle' };
  if (model.fetching) return { word: 'installing', tone: 'busy' };
  if (model.problem) return { word: 'cannot load', tone: 'bad' };
  return { word: 'not loaded', tone: 'idle' };
}

/** What goes with a model that is removed, and what stays, as the frontend has looked it up. */
export function removal(plan: RemovalPlan): { lost: string[]; kept: string[] } {
  const { files = [], nodes = [], nodes_kept = [], aliases = [], replicas = 0 } = plan;
  const lost = ['its configuration'];
  if (replicas) lost.push(`${count(replicas, 'loaded replica')}`);
  if (files.length) lost.push(`${count(files.length, 'file')} on the frontend${plan.bytes ? ` (${bytes(plan.bytes)})` : ''}: ${list(files)}`);
  if (nodes.length) lost.push(`copies of its files that the fleet made on ${list(nodes)}`);
  if (aliases.length) lost.push(`${aliases.length === 1 ? 'the alias' : 'the aliases'} ${list(aliases, 5)}: other names for it, which stop working`);
  const kept = [];
  if (plan.file_kept) kept.push(`${plan.file_kept}, in the frontend’s folder of models: Remuda did not download it`);
  if (nodes_kept.length) kept.push(`files that may be on ${list(nodes_kept)}: the workers there cannot tell which of them the fleet brought`);
  return { lost, kept };
}

/** What saving another configuration unloads, by where it is. */
export function replacedBySaving(replicas: Iterable<Replica>, model: string): string[] {
  const there = [...replicas].filter((one) => one.model === model && ['loaded', 'loading', 'staging'].includes(one.state ?? ''));
  return there.map((one) => `the replica on ${one.node || one.node_id}${one.in_flight ? `, with ${count(one.in_flight, 'request')} in flight` : ''}`);
}

export const PINNED = 'Never unloaded, neither when idle nor to make room; its files stay where they are.';

export interface Fit {
  node: string;
  fits: boolean;
  /** It is only busy. */
  waits: boolean;
  /** In the frontend's word: `unknown` where nothing but the model's size is in question. */
  outcome: string;
  reason: string;
}

/** What a frontend says of where a model fits: `{nodes: [{node, fits, reason}]}` or a plain list. */
export function readFits(body: unknown): Fit[] {
  const all = Array.isArray(body) ? body : ((body as { nodes?: unknown[]; fits?: unknown[] } | null)?.nodes ?? (body as { fits?: unknown[] } | null)?.fits ?? []);
  return (all as Record<string, unknown>[]).map((one) => ({
    node: String(one['node'] ?? one['node_name'] ?? one['name'] ?? one['node_id'] ?? ''),
    fits: Boolean(one['fits']),
    waits: Boolean(one['waiting_helps']),
    outcome: String(one['outcome'] ?? ''),
    reason: [one['reason'], one['copies'], unloads(one['unloads'])].filter(Boolean).join('; '),
  }));
}

export function sizesOf(body: unknown): { size: number; memory: number; sizeUnknown: string } {
  const told = (body ?? {}) as { size_bytes?: number; memory_bytes?: number; size_unknown?: string };
  return { size: told.size_bytes ?? 0, memory: told.memory_bytes ?? 0, sizeUnknown: told.size_unknown ?? '' };
}

/** `known`: the model's size is; without it no machine is said to take it, and none to be too small. `stands`: the machine. */
export function fitShown(one: Fit, known: boolean, loaded: boolean, stands?: { word: string; well: boolean }): { tone: Tone; word: string; reason: string } {
  if (loaded) return { tone: 'ok', word: 'loaded there', reason: one.reason };
  if (known && one.fits) return { tone: 'ok', word: 'fits', reason: one.reason };
  if (stands && !stands.well) return { tone: 'idle', word: stands.word, reason: one.reason };
  // Why the size is not known stands above, once for all machines.
  if (!known) return { tone: 'idle', word: 'not known', reason: one.fits || one.outcome === 'unknown' ? '' : one.reason };
  return { tone: 'idle', word: one.waits ? 'busy now' : 'does not fit now', reason: one.reason };
}

function unloads(names: unknown): string {
  return Array.isArray(names) && names.length ? `${names.join(', ')} would be unloaded first` : '';
}

export function visionModel(model: Model | undefined): boolean {
  return Boolean(model?.details?.vision || model?.usecases?.some((one) => /vision/i.test(one)));
}

export function chatModel(model: Model): boolean {
  const cases = model.usecases ?? [];
  return cases.length === 0 || cases.some((one) => /chat|completion/i.test(one));
}

/** All who have a model's files, in words: a machine that has none gets them from one of these. */
export function filesOn(model: Model): string[] {
  return [...(model.nodes_with_files ?? []), ...(model.on_frontend ? ['the frontend'] : []), ...(model.in_storage ? ['object storage'] : [])];
}

/** Where a model came from; the frontends note `added` of each one that a person or a program sent. */
export function cameFrom(model: Model): string {
  const origin = model.origin ?? '';
  return model.source || model.details?.source || (origin === 'added' ? 'a configuration that was added here' : origin);
}
