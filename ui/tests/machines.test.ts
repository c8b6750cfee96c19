import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Node } from '../src/api/messages.ts';
import { bulkActions } from '../src/logic/machines.ts';

const node = (name: string, status: string, remuda?: object): Node => ({ id: name, name, status, ...(remuda ? { remuda } : {}) }) as Node;
const names = (nodes: Node[]): string => nodes.map((one) => one.id).join(' ');

test('a machine that waits for approval takes part in nothing but its approval and labels', () => {
  const chosen = [node('new', 'pending', {}), node('well', 'healthy', {}), node('resting', 'draining', { drained: true }), node('leaving', 'draining', { leaving: true })];
  const bulk = bulkActions(chosen);
  assert.equal(names(bulk.approve), 'new');
  assert.equal(names(bulk.drain), 'well leaving');
  assert.equal(names(bulk.resume), 'resting');
  assert.equal(names(bulk.label), 'new well resting leaving');
  assert.equal(names(bulk.install), 'well resting leaving');
});

test('a machine of another kind is drained when it says so', () => {
  const bulk = bulkActions([node('other', 'draining')]);
  assert.equal(names(bulk.resume), 'other');
  assert.equal(names(bulk.drain), '');
});
