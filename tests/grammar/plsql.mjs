// Oracle SQL and PL/SQL, judged by the ANTLR PL/SQL grammar, which is not Oracle's own. Its caller is plsql.py:
//
//   node plsql.mjs <directory with node_modules>     stdin: [sql, ...]     stdout: [[error, ...], ...]
import fs from 'node:fs'
import path from 'node:path'
import { pathToFileURL } from 'node:url'

// An ES module finds packages beside itself only, and these are installed elsewhere.
const load = (file) => import(pathToFileURL(path.resolve(process.argv[2], 'node_modules', file)))
const { PlSqlParser, getParserFromInput } = await load('@griffithswaite/ts-plsql-parser/build/index.js')
const { default: antlr4 } = await load('antlr4/dist/antlr4.node.mjs')

// Its hash function returns nothing, so that it compares each configuration with all others, for a third of the time.
const { PredictionMode } = antlr4.atn
const { getConflictingAltSubsets } = PredictionMode
PredictionMode.getConflictingAltSubsets = ({ items }) => {
  const byState = new Map()
  for (const item of items) {
    const { stateNumber } = item.state
    byState.set(stateNumber, byState.get(stateNumber) ?? []).get(stateNumber).push(item)
  }
  return [...byState.values()].flatMap((alike) => getConflictingAltSubsets({ items: alike }))
}

const rules = (...names) => names.map((name) => PlSqlParser.ruleNames.indexOf(name))
const [LOCK] = rules('for_update_clause')
const STATEMENTS = rules('select_statement', 'update_statement', 'delete_statement', 'insert_statement', 'merge_statement')
const ROW_LIMITS = rules('fetch_clause', 'offset_clause')
const OTHER_ROWS = rules('where_clause', 'selected_list') // what is limited there is not what FOR UPDATE locks

const parts = (node) => (node.children ?? []).filter((child) => 'ruleIndex' in child)
const isInside = ({ parentCtx: parent }) => parent != null && (STATEMENTS.includes(parent.ruleIndex) || isInside(parent))
const isLimited = (node) =>
  ROW_LIMITS.includes(node.ruleIndex) ||
  parts(node).some((part) => !OTHER_ROWS.includes(part.ruleIndex) && isLimited(part))

// Both are errors to Oracle which the grammar lets pass.
function* lockErrors(node) {
  if (node.ruleIndex === LOCK) {
    if (isLimited(node.parentCtx)) yield 'ORA-02014: FOR UPDATE with a row limit'
    if (isInside(node.parentCtx)) yield 'FOR UPDATE inside a subquery'
  }
  for (const part of parts(node)) yield* lockErrors(part)
}

function parsed(sql, mode) {
  const found = []
  const syntaxError = (_, symbol, line, column, message) => found.push(`${line}:${column} ${message.slice(0, 160)}`)
  const listener = { syntaxError, reportAmbiguity() {}, reportAttemptingFullContext() {}, reportContextSensitivity() {} }
  const parser = getParserFromInput(sql)
  for (const part of [parser, parser.getTokenStream().tokenSource]) {
    part.removeErrorListeners()
    part.addErrorListener(listener)
  }
  parser._interp.predictionMode = mode
  return [parser.sql_script(), found]
}

// SLL takes half the time of LL. It rejects some valid statements, but accepts no invalid one.
const [SLL, LL] = [0, 1]

function errors(sql) {
  let [script, found] = parsed(sql, SLL)
  if (found.length) [script, found] = parsed(sql, LL)
  if (!parts(script).length) found.push('no statement at all')
  return [...found, ...lockErrors(script)]
}

process.stdout.write(JSON.stringify(JSON.parse(fs.readFileSync(0, 'utf8')).map(errors)))
