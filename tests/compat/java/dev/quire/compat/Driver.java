package dev.quire.compat;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.bookkeeper.client.BKException;

/**
 * The stock BookKeeper client, driven from a test: one JSON object a line on standard input, {"id", "op", ...}, one on
 * standard output for each, {"id", "ok"} or {"id", "error"}, in the order in which they end; {"event", ...} between them.
 * Each command runs on a thread of its own. Everything else that a library prints goes to standard error.
 */
public final class Driver {
    /** A command: its arguments to what is reported, which Jackson writes as JSON. */
    interface Operation {
        Object run(JsonNode arguments) throws Exception;
    }

    static final ObjectMapper JSON = new ObjectMapper();
    private static final PrintStream ANSWERS = System.out;

    private Driver() {
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err);
        Map<String, Operation> operations = new HashMap<>();
        Clients clients = new Clients();
        clients.register(operations);
        new Ledgers(clients).register(operations);
        new Bookies(clients).register(operations);
        new Tools(clients).register(operations);
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            JsonNode command = JSON.readTree(line);
            threads.execute(() -> answer(operations, command));
        }
        Runtime.getRuntime().halt(0);
    }

    /** Report something that no command asked for at that moment. */
    static void event(Map<String, Object> event) {
        print(event);
    }

    private static void answer(Map<String, Operation> operations, JsonNode command) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("id", command.get("id").asLong());
        try {
            Operation operation = operations.get(command.get("op").asText());
            if (operation == null) {
                throw new IllegalArgumentException("no command " + command.get("op"));
            }
            answer.put("ok", operation.run(command));
        } catch (Throwable thrown) {
            answer.put("error", describe(thrown));
        }
        print(answer);
    }

    static Map<String, Object> describe(Throwable thrown) {
        Throwable cause = thrown;
        while ((cause instanceof CompletionException || cause instanceof ExecutionException) && cause.getCause() != null) {
            cause = cause.getCause();
        }
        Map<String, Object> error = new LinkedHashMap<>();
        error.put("name", cause instanceof BKException bk ? name(bk.getCode()) : cause.getClass().getSimpleName());
        error.put("message", String.valueOf(cause.getMessage()));
        if (!(cause instanceof BKException)) {
            cause.printStackTrace(System.err);
        }
        return error;
    }

    /** A result code in the words of the Java client: OK, NoSuchEntry, LedgerFenced, ... */
    static String name(int code) {
        if (code == BKException.Code.OK) {
            return "OK";
        }
        String simple = BKException.create(code).getClass().getSimpleName();
        String bare = simple.startsWith("BK") ? simple.substring(2) : simple;
        return bare.endsWith("Exception") ? bare.substring(0, bare.length() - "Exception".length()) : bare;
    }

    private static void print(Map<String, Object> message) {
        try {
            String line = JSON.writeValueAsString(message);
            synchronized (ANSWERS) {
                ANSWERS.println(line);
                ANSWERS.flush();
            }
        } catch (java.io.IOException error) {
            throw new IllegalStateException(error);
        }
    }
}
