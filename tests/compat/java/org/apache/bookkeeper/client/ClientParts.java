package org.apache.bookkeeper.client;

import org.apache.bookkeeper.proto.BookieClient;

/** What the stock client keeps package-private and a test of single bookies needs. */
public final class ClientParts {
    private ClientParts() {
    }

    public static BookieClient bookieClient(BookKeeper client) {
        return client.getBookieClient();
    }
}
