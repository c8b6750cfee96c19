/** What the stream of everything has said so far. Pure: each event makes a new state of an old one. */
import type { Attention, LiveKey, LiveServer, Model, Node, Operation, Replica } from '../api/messages';

export interface Entities {
  nodes: ReadonlyMap<string, Node>;
  models: ReadonlyMap<string, Model>;
  replicas: ReadonlyMap<string, Replica>;
  operations: ReadonlyMap<string, Operation>;
  servers: ReadonlyMap<string, LiveServer>;
  keys: ReadonlyMap<string, LiveKey>;
  attention: ReadonlyMap<string, Attention>;
}

export type Collection = keyof Entities;

export const COLLECTIONS: readonly Collection[] = ['nodes', 'models', 'replicas', 'operations', 'servers', 'keys', 'attention'];
export const NOTHING: Entities = { nodes: new Map(), models: new Map(), replicas: new Map(), operations: new Map(), servers: new Map(), keys: new Map(), attention: new Map() };

export type Snapshot = Partial<Record<Collection, { id: string }[]>>;
export type Change = Partial<Record<Collection, { set?: { id: string }[]; gone?: string[] }>>;

export function fromSnapshot(snapshot: Snapshot): Entities {
  const whole: Record<string, ReadonlyMap<string, unknown>> = {};
  for (const name of COLLECTIONS) whole[name] = new Map((snapshot[name] ?? []).map((one) => [one.id, one]));
  return whole as unknown as Entities;
}

export function toSnapshot(entities: Entities): Snapshot {
  const snapshot: Snapshot = {};
  for (const name of COLLECTIONS) snapshot[name] = [...entities[name].values()];
  return snapshot;
}

/** Entities without a change stay the same objects, so that their rows need no work. */
export function changed(entities: Entities, change: Change): Entities {
  const next: Record<string, ReadonlyMap<string, unknown>> = { ...entities };
  for (const name of COLLECTIONS) {
    const part = change[name];
    if (!part) continue;
    const map = new Map<string, unknown>(entities[name]);
    for (const one of part.set ?? []) map.set(one.id, merged(name, map.get(one.id), one));
    for (const id of part.gone ?? []) map.delete(id);
    next[name] = map;
  }
  return next as unknown as Entities;
}

/** Of an operation with very many steps only those at work are sent: the others are as they were. */
function merged(name: Collection, before: unknown, after: { id: string }): unknown {
  if (name !== 'operations' || !before) return after;
  const known = before as Operation;
  const now = after as Operation;
  if (now.whole !== false || !known.steps || !now.steps) return after;
  const steps = new Map(known.steps.map((step) => [step.node_id, step]));
  for (const step of now.steps) steps.set(step.node_id, step);
  return { ...now, steps: [...steps.values()] };
}
