import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Operation, OperationPlan } from '../src/api/messages.ts';
import { fetchedInAll, fetchLine, plainName, title, workLine, workOn } from '../src/logic/operations.ts';

const operation = (told: object): Operation => ({ id: 'op-1', status: 'running', percentage: 34.6, ...told }) as Operation;

test('people read the name alone of what a gallery knows as GALLERY@NAME', () => {
  assert.equal(plainName('local@parrot'), 'parrot');
  assert.equal(plainName('parrot'), 'parrot');
  assert.equal(title(operation({ kind: 'install', backend: 'local@parrot' })), 'Installing parrot');
  assert.equal(title(operation({ kind: 'install_model', model: 'local@parrot', status: 'failed' })), 'Install parrot');
});

test('what is under way with a card of a gallery is found, by its kind and name', () => {
  const model = operation({ kind: 'install_model', model: 'parrot' });
  const backend = operation({ kind: 'install', backend: 'remuda@llama-cpp' });
  const both = [model, backend];
  assert.equal(workOn(both, 'model', 'parrot'), model);
  assert.equal(workOn(both, 'backend', 'llama-cpp'), backend);
  assert.equal(workOn(both, 'backend', 'parrot'), undefined);
  assert.equal(workOn([{ ...model, status: 'succeeded' }], 'model', 'parrot'), undefined);
  assert.equal(workOn([operation({ kind: 'load', model: 'parrot' })], 'model', 'parrot'), undefined);
});

test('the way to it says how far it is, or why it stands still', () => {
  assert.equal(workLine(operation({ kind: 'install_model', model: 'parrot' })), 'Installing: 34 %');
  assert.equal(workLine(operation({ kind: 'upgrade', backend: 'x', status: 'paused' })), 'Upgrading: paused');
});

test('before an install one reads what comes to a machine, and whether there is room', () => {
  const GIB = 2 ** 30;
  assert.deepEqual(fetchLine({ node_id: 'a', fetch_bytes: GIB, disk_free: 4 * GIB }), { line: 'fetches at most 1.0 GiB, 4.0 GiB free on its disk', short: false });
  assert.equal(fetchLine({ node_id: 'a', fetch_bytes: 4 * GIB, disk_free: GIB }).short, true);
  assert.equal(fetchLine({ node_id: 'a', fetch_bytes: 0, disk_free: 0 }).short, false);
  assert.equal(fetchLine({ node_id: 'a' }).line, 'fetches a size that is not known, room on its disk not known');
});

test('sizes of all machines are added up, without those that are not known', () => {
  const plan = { fetches: [{ node_id: 'a', fetch_bytes: 1024 }, { node_id: 'b', fetch_bytes: 1024 }, { node_id: 'c' }] } as OperationPlan;
  assert.match(fetchedInAll(plan), /^At most 2\.0 KiB fetched in all, without 1 machine of which the size is not known/);
  assert.equal(fetchedInAll({ fetches: [{ node_id: 'c' }] } as OperationPlan), '');
});
