/** What people do with machines, one or several. */
import { post, put, remove } from '../api/client';
import type { Node } from '../api/messages';
import { actions } from './actions.svelte';
import { count, list } from './format';
import { automatic, machineName } from './machines';

function names(nodes: readonly Node[]): string {
  return list(nodes.map(machineName), 4);
}

async function each(nodes: readonly Node[], call: (node: Node) => Promise<unknown>, done: string): Promise<void> {
  await actions.run(() => Promise.all(nodes.map(call)), `${done} ${names(nodes)}`);
}

function path(node: Node, rest = ''): string {
  return `/api/nodes/${encodeURIComponent(node.id)}${rest}`;
}

export async function approve(nodes: readonly Node[]): Promise<void> {
  await each(nodes, (node) => post(path(node, '/approve')), 'Approved');
}

export async function drain(nodes: readonly Node[]): Promise<void> {
  const busy = nodes.reduce((sum, node) => sum + (node.in_flight_count ?? 0), 0);
  const models = nodes.reduce((sum, node) => sum + (node.model_count ?? 0), 0);
  const yes = await actions.ask({
    title: `Drain ${names(nodes)}?`,
    text: `New requests and new models go elsewhere until you resume. ${count(models, 'loaded model')} and ${count(busy, 'request')} in flight are there now; requests under way finish.`,
    verb: 'Drain',
  });
  if (yes) await each(nodes, (node) => post(path(node, '/drain')), 'Drained');
}

export async function resume(nodes: readonly Node[]): Promise<void> {
  await each(nodes, (node) => post(path(node, '/resume')), 'Resumed');
}

export async function forget(nodes: readonly Node[]): Promise<boolean> {
  const models = nodes.reduce((sum, node) => sum + (node.model_count ?? 0), 0);
  const yes = await actions.ask({
    title: `Remove ${names(nodes)}?`,
    text: 'Lost with it, for each of these machines:',
    lost: [
      'its approval and its credentials: it must be approved again',
      'its labels and budgets',
      ...(models ? [`${count(models, 'loaded model')}`] : []),
      'its worker, where it runs: it is told to stop, and is started again there',
    ],
    verb: 'Remove',
    danger: true,
  });
  if (yes) await each(nodes, (node) => remove(path(node)), 'Removed');
  return yes;
}

/** Own labels alone: automatic ones belong to the worker. */
export async function setLabels(node: Node, labels: Record<string, string>): Promise<boolean> {
  const kept = Object.fromEntries(Object.entries(node.labels ?? {}).filter(([key]) => automatic(key)));
  const done = await actions.run(() => put(path(node, '/labels'), { ...kept, ...labels }), 'Labels saved');
  return done !== undefined;
}
